"""The Python programs that the scripted model sends. They run inside the sandbox and need only the standard library,
except `PANDAS`. Each prints something for people, then one marked line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kooi.agent.scripted import Plan

MARK = "FACTS "

LOOK = """\
import csv, importlib.util, json, os, re

DATE = re.compile(r"\\d{4}\\D\\d{1,2}\\D\\d{1,2}([ T].*)?")

def number(text):
    try:
        return float(text) == float(text)
    except ValueError:
        return False

def column(values):
    values = [v for v in values if v]
    distinct = len(set(values))
    kind = "text"
    if values and all(DATE.fullmatch(v) for v in values):
        kind = "date"
    elif values and all(number(v) for v in values):
        kind = "number"
    return {"kind": kind, "distinct": distinct, "groups": kind == "text" and 2 <= distinct <= 50}

names = sorted(name for name in os.listdir(".") if name.endswith(".csv"))
print("files:", names)
with open(names[0], newline="", encoding="utf-8", errors="replace") as file:
    rows = list(csv.DictReader(file))
columns = {name: column([row[name] for row in rows]) for name in list(rows[0])[:40]}
for name, facts in columns.items():
    print(f"  {name}: {facts['kind']}, {facts['distinct']} distinct, for example {rows[0][name]!r}")
has_pandas = importlib.util.find_spec("pandas") is not None
print("FACTS " + json.dumps({"look": {"file": names[0], "rows": len(rows), "columns": columns, "pandas": has_pandas}}))
"""

PANDAS = """\
import json
import pandas as pd

plan = json.loads(PLAN)
frame = pd.read_csv(plan["file"], keep_default_na=False, na_values=[""])
if plan["group"] is None:
    keys = pd.Series("all", index=frame.index)
elif plan["part"] is None:
    keys = frame[plan["group"]]
else:
    keys = getattr(pd.to_datetime(frame[plan["group"]]).dt, plan["part"])
values = frame.groupby(keys)[plan["measure"]].agg(plan["how"]).dropna()
print(values.sort_values(ascending=False).head(12).round(4).to_string())
print("FACTS " + json.dumps({"compute": {str(key): float(value) for key, value in values.items()}}))
"""

_ROWS = """\
import csv, itertools, json, math, re, statistics

plan = json.loads(PLAN)

def key(row):
    if plan["group"] is None:
        return "all"
    text = row[plan["group"]]
    if plan["part"] is None:
        return text
    return str(int(re.split(r"\\D", text)[{"year": 0, "month": 1}[plan["part"]]]))

def rows():
    with open(plan["file"], newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            if row[plan["measure"]] and key(row):
                yield key(row), float(row[plan["measure"]])

"""

PLAIN = (
    _ROWS
    + """\
groups = {}
for name, value in rows():
    groups.setdefault(name, []).append(value)
how = {"mean": statistics.fmean, "sum": math.fsum, "count": len, "median": statistics.median}[plan["how"]]
values = {name: float(how(numbers)) for name, numbers in groups.items()}
for name, value in sorted(values.items(), key=lambda pair: -pair[1])[:12]:
    print(f"  {name}: {value:.4f}")
print("FACTS " + json.dumps({"compute": values}))
"""
)

CHECK = (
    _ROWS
    + """\
def how(numbers):
    ordered = sorted(numbers)
    count = len(ordered)
    if plan["how"] == "count":
        return count
    if plan["how"] == "median":
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return sum(ordered) / (count if plan["how"] == "mean" else 1)

values = {}
for name, pairs in itertools.groupby(sorted(rows()), key=lambda pair: pair[0]):
    values[name] = float(how([value for _, value in pairs]))
print("second way:", len(values), "groups,", len(list(rows())), "values")
print("FACTS " + json.dumps({"check": values}))
"""
)


def fill(program: str, plan: Plan) -> str:
    """Return `program` with the plan as a string literal in it; names in the plan come from the data."""
    return program.replace("PLAN", repr(json.dumps(asdict(plan))), 1)
