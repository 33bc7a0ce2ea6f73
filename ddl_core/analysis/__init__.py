"""Tables and figures from records, without torch.

``records -> tables -> arms -> points -> figures``: each step is a pure function of the one before.
"""
