"""What every check returns: one line of the report, with its remedy."""

from dataclasses import dataclass
from typing import Literal

# warn: it runs, but slowly or only in part; bad: it does not run, or measures nothing.
State = Literal["ok", "warn", "bad", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: State
    detail: str
    remedy: str = ""  # not shown where all is well


def subjects(findings: list[Finding], state: State) -> list[str]:
    """Return what is in a state, each once."""
    return list(dict.fromkeys(one.subject for one in findings if one.state == state))


def text(findings: list[Finding]) -> str:
    """Return the report for people: aligned, each finding's further lines and remedy below it."""
    subject = max(len(one.subject) for one in findings)
    state = max(len(one.state) for one in findings)
    lines = []
    for one in findings:
        remedy = [f"remedy: {one.remedy}"] if one.remedy and one.state != "ok" else []
        first, *others = one.detail.splitlines() or [""]
        lines.append(f"{one.subject:<{subject}}  {one.state:<{state}}  {first}".rstrip())
        lines += [f"{'':<{subject}}  {'':<{state}}  {line}" for line in (*others, *remedy)]
    return "\n".join(lines)
