"""Every identity by name: a question to a method that has one right answer."""

from __future__ import annotations

from coterie.testing.identities import (
    data,
    learning,
    limits,
    objective,
    participation,
    randomness,
    rows,
    seen,
    state,
    symmetry,
    traffic,
)
from coterie.testing.subject import Check

IDENTITIES: dict[str, Check] = {
    "limits": limits.limits,
    "anchored": limits.anchored,
    "alone": limits.alone,
    "single": limits.single,
    "symmetric": symmetry.symmetric,
    "relabelled": symmetry.relabelled,
    "objective": objective.objective,
    "rows": rows.rows,
    "chunks": rows.chunks,
    "executors": rows.executors,
    "moves": state.moves,
    "options": state.options,
    "storage": state.storage,
    "traffic": traffic.traffic,
    "seeded": randomness.seeded,
    "resumed": randomness.resumed,
    "test data": data.test_data,
    "validation data": data.validation_data,
    "without validation": data.without_validation,
    "examples": data.examples,
    "sizes": data.sizes,
    "participation": participation.participation,
    "absent": participation.absent,
    "relations": seen.relations,
    "evaluated": seen.evaluated,
    "learns": learning.learns,
}
