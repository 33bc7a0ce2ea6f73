"""Advice: which arm on how many GPUs keeps some limits, how sure that is, and what to measure next.

``paper`` and ``own_records`` give `Evidence`, ``accuracy`` what batches cost in accuracy;
``candidates`` predicts and judges, ``next_run`` says what would tell most, ``advise`` decides, and
``told`` puts it in words. docs/advise.md explains.
"""
