"""A model that needs no key: a script that answers one kind of question, how a number differs between groups.

It works as a real model does, through the tool alone: it looks at the files and their columns, plans from what it saw
and from the words of the question, computes, computes again in another way, and reports what came out, also when that
is a failure. It keeps no state: everything it knows it reads from the steps so far. Each program it sends prints one
line that starts with a mark, as JSON; that line is hostile input here as it is for any model, and is checked.
"""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kooi.agent import programs
from kooi.agent.loop import Reply, Step, Task, ToolCall
from kooi.contract.errors import InvalidRequest
from kooi.contract.strictjson import strict_loads

_WORDS = {
    "rain": "precipitation", "rainy": "precipitation", "rains": "precipitation", "rainfall": "precipitation",
    "wet": "precipitation", "wettest": "precipitation", "dry": "precipitation", "driest": "precipitation",
    "warm": "max", "warmest": "max", "hot": "max", "hottest": "max", "cold": "min", "coldest": "min",
    "temperature": "temp", "windy": "wind", "windiest": "wind", "costs": "price", "expensive": "price",
}  # fmt: skip
_HOW = (("sum", {"total", "sum", "altogether"}), ("count", {"many", "count", "often"}), ("median", {"median"}))


@dataclass(frozen=True)
class Plan:
    """What to compute: `how` over `measure`, by `group` (its month or year when `part` says so)."""

    file: str
    rows: int
    measure: str
    group: str | None
    part: str | None
    how: str

    def in_words(self) -> str:
        """Return the plan as a phrase."""
        how = {"mean": "average", "sum": "total", "count": "number of values of", "median": "median"}[self.how]
        by = f" by {self.part + ' of ' if self.part else ''}{self.group}" if self.group else ""
        return f"{how} {self.measure}{by}"


class ScriptedModel:
    """The scripted model: deterministic, offline, and honest about what it cannot answer."""

    name = "scripted"

    async def reply(self, task: Task, steps: Sequence[Step]) -> Reply:
        """Return the next reply."""
        facts = _facts(steps)
        look = _checked_look(facts.get("look"))
        if look is None:
            return _retry(steps, [("I will look at the data first.", programs.LOOK)])
        plan = plan_for(task.question, look)
        if plan is None:
            return _say(f"{look['file']} has {look['rows']} rows but no column of numbers, so I cannot compute on it.")
        computed = _numbers(facts.get("compute"))
        if computed is None:
            ways = [("", programs.PLAIN)]
            if look.get("pandas") is True:
                ways.insert(0, (f"I will compute the {plan.in_words()}.", programs.PANDAS))
            return _retry(steps, [(text, programs.fill(code, plan)) for text, code in ways])
        checked = _numbers(facts.get("check"))
        if checked is None:
            text = "I will check these figures in a second way before I report them."
            return _retry(steps, [(text, programs.fill(programs.CHECK, plan))])
        return _say(report(plan, computed, checked))

    async def close(self) -> None:
        """Do nothing: it holds nothing."""


def plan_for(question: str, look: Mapping[str, Any]) -> Plan | None:
    """Choose what to compute from the words of the question and the columns that were seen."""
    words = re.findall(r"[a-z0-9]+", question.lower())
    words += [_WORDS[word] for word in words if word in _WORDS]
    columns: Mapping[str, Mapping[str, Any]] = look["columns"]
    numbers = [name for name, column in columns.items() if column.get("kind") == "number"]
    if not numbers:
        return None
    group, part = _group(words, columns)
    return Plan(
        file=look["file"],
        rows=look["rows"],
        measure=_closest(words, [name for name in numbers if name != group] or numbers),
        group=group,
        part=part,
        how=next((how for how, names in _HOW if names & set(words)), "mean"),
    )


def _group(words: Sequence[str], columns: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, str | None]:
    dates = [name for name, column in columns.items() if column.get("kind") == "date"]
    part = next((part for part in ("month", "year") if {part, part + "s"} & set(words)), None)
    if dates and part is not None:
        return dates[0], part
    texts = [name for name, column in columns.items() if column.get("groups") is True]
    if texts:
        return _closest(words, texts), None
    return (dates[0], "month") if dates else (None, None)


def _closest(words: Sequence[str], names: Sequence[str]) -> str:
    """Return the name that shares most word stems with `words`; the first one when none does."""

    def score(name: str) -> int:
        parts = re.findall(r"[a-z0-9]+", name.lower())
        return sum(1 for part in parts for word in words if len(part) > 2 and (word in (part, part + "s")))

    return max(names, key=score)


def report(plan: Plan, computed: Mapping[str, float], checked: Mapping[str, float]) -> str:
    """Return the answer: the extremes, and whether the second computation agrees."""
    if not _agree(computed, checked):
        return f"I computed the {plan.in_words()} in two ways and they disagree, so I do not trust either figure."
    ranked = sorted(computed.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"Over {plan.rows} rows of {plan.file}, the {plan.in_words()}"]
    if len(ranked) == 1:
        lines.append(f"is {ranked[0][1]:.4g}.")
    else:
        (top, high), (bottom, low) = ranked[0], ranked[-1]
        lines.append(f"is highest for {_label(plan, top)} ({high:.4g}) and lowest for {_label(plan, bottom)}")
        lines.append(f"({low:.4g}), {high / low:.3g} times less." if low > 0 else f"({low:.4g}).")
    lines.append(f"Two independent computations agree on all {len(ranked)} groups.")
    return " ".join(lines)


def _label(plan: Plan, key: str) -> str:
    months = {str(number): name for number, name in enumerate(calendar.month_name)}
    return months.get(key, key) if plan.part == "month" else key


def _agree(left: Mapping[str, float], right: Mapping[str, float]) -> bool:
    slack = 1e-9 * max(abs(value) for value in left.values())
    return left.keys() == right.keys() and all(abs(left[key] - right[key]) <= slack for key in left)


def _retry(steps: Sequence[Step], ways: Sequence[tuple[str, str]]) -> Reply:
    """Send the first of `ways` that was not tried yet; give up after the last."""
    tried = {code for step in steps for code in _codes(step)}
    for number, (text, code) in enumerate(ways):
        if code not in tried:
            said = text if number == 0 else "That failed, so I will do it without pandas."
            call = ToolCall(f"call_{len(steps) + 1}", "run_python", {"code": code})
            return Reply(text=said or "I will compute it.", calls=(call,), stop="calls")
    last = steps[-1].outcomes[-1].text if steps and steps[-1].outcomes else "no output"
    said = f"I could not finish. The last program came to: {last.splitlines()[0][:200]}"
    return Reply(text=said, calls=(), stop="refused")


def _say(text: str) -> Reply:
    return Reply(text=text, calls=(), stop="done")


def _codes(step: Step) -> list[str]:
    arguments = [call.arguments for call in step.reply.calls]
    return [str(a["code"]) for a in arguments if isinstance(a, Mapping) and "code" in a]


def _facts(steps: Sequence[Step]) -> dict[str, object]:
    """Return what the programs printed on their marked lines, the last one of each kind."""
    facts: dict[str, object] = {}
    for step in steps:
        for outcome in step.outcomes:
            for line in outcome.text.splitlines():
                if line.startswith(programs.MARK):
                    facts.update(_parsed(line[len(programs.MARK) :]))
    return facts


def _parsed(line: str) -> dict[str, object]:
    try:
        value = strict_loads(line.encode("utf-8", "replace"))
    except InvalidRequest:
        return {}
    return value if isinstance(value, dict) else {}


def _checked_look(value: object) -> Mapping[str, Any] | None:
    """Return what was seen of the data, or None when it has not the form that the program prints."""
    if not isinstance(value, dict) or not isinstance(value.get("file"), str) or not isinstance(value.get("rows"), int):
        return None
    columns = value.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(column, dict) for column in columns.values()):
        return None
    return value


def _numbers(value: object) -> Mapping[str, float] | None:
    """Return a table of finite numbers, or None."""
    if not isinstance(value, dict) or not value:
        return None
    good = all(isinstance(v, float) and math.isfinite(v) for v in value.values())
    return value if good else None
