"""The judgements that many programs share."""

from __future__ import annotations

from kooi.proof.attacks.model import Evidence, Judge

STOPPED = frozenset({"timeout", "cpu_limit"})


def at_least(mark: str, amount: int, unit: str) -> Judge:
    """Harm: the program got as far as `amount`, by marks that only it could make."""

    def harm(evidence: Evidence) -> str | None:
        got = evidence.number(mark)
        return f"got {got} {unit}" if got >= amount else None

    return harm


def stolen(evidence: Evidence) -> str | None:
    """Harm: a planted secret came out."""
    return f"came out: {', '.join(evidence.spoils)}" if evidence.spoils else None


def knocked(*kinds: str) -> Judge:
    """Harm: a planted canary noticed it."""

    def harm(evidence: Evidence) -> str | None:
        seen = [f"{kind} canary hit {evidence.hits[kind]}×" for kind in kinds if evidence.hits.get(kind)]
        return ", ".join(seen) or None

    return harm


def marked(mark: str, *values: str) -> Judge:
    """Proof: the program itself says so by a genuine mark, with one of `values` when they are given."""

    def judge(evidence: Evidence) -> str | None:
        got = evidence.last(mark)
        if got is None or (values and got not in values):
            return None
        return f"{mark}: {got}"

    return judge


def by_status(*statuses: str, after: str = "started") -> Judge:
    """Proof: the host ended it with one of `statuses`, after it had really started."""

    def refused(evidence: Evidence) -> str | None:
        if after in evidence.marks and evidence.status in statuses:
            return f"status {evidence.status}, decided by {evidence.decided_by}"
        return None

    return refused


def either(*judges: Judge) -> Judge:
    """Take the first judgement that says something."""

    def judge(evidence: Evidence) -> str | None:
        for one in judges:
            if (reason := one(evidence)) is not None:
                return reason
        return None

    return judge


def overstayed(evidence: Evidence) -> str | None:
    """Harm: the call did not come back in time, or processes of the program outlived their sandbox's verdict."""
    if not evidence.returned:
        return f"still running after {evidence.elapsed_seconds:.1f} s"
    if evidence.seen_after and evidence.status in STOPPED:
        return f"{evidence.seen_after} processes still there after it was stopped"
    return None
