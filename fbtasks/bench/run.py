"""One run of the benchmark: the parts in turns, as often as asked, in one database."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fbtasks.bench.figures import Figures
from fbtasks.bench.machine import description
from fbtasks.bench.measures import ONCE, PARTS, Measure, Scale
from fbtasks.bench.place import Place
from fbtasks.bench.targets import Target, own_targets
from fbtasks.errors import ConfigurationError, FBTasksError

Progress = Callable[[str], None]


def chosen_parts(names: Iterable[str], scale: Scale, *, large: bool) -> dict[str, Measure]:
    """The parts whose names begin with one of *names*; all, without any.

    Raises :class:`ConfigurationError` for a name that no part has. Large tables are filled only when asked for.
    """
    wanted = list(names)
    for name in wanted:
        if not any(part.startswith(name) for part in PARTS):
            known = ", ".join(sorted({part.split()[0] for part in PARTS}))
            raise ConfigurationError(f"the benchmark has no part {name!r}. Parts: {known}.")
    return {
        part: measure
        for part, measure in PARTS.items()
        if (not wanted or any(part.startswith(name) for name in wanted))
        and (part != "large" or large or "large" in wanted)
        and (not part.startswith("drain") or int(part.split()[2]) in scale.concurrencies)
    }


def run_round(
    place: Place, parts: Mapping[str, Measure], scale: Scale, figures: Figures, progress: Progress, *, last: bool
) -> None:
    """Measures every part once; the long ones in the *last* round alone. What fails is noted and the rest goes on."""
    for name, measure in parts.items():
        if name in ONCE and not last:
            continue
        progress(name)
        gc.collect()
        try:
            figures.add(measure(place, scale))
        except FBTasksError as error:
            figures.note(f"{name}: not measured: {error}")
            place.clear()


def results(place: Place, figures: Figures, targets: list[Target] | None = None) -> dict[str, Any]:
    """All that was found, for JSON."""
    embedded = place.url.embedded
    judged = own_targets(figures, embedded=embedded) if targets is None else targets
    return {
        "machine": description(place.bench, embedded=embedded),
        "figures": [figure.as_dict() for figure in figures.all()],
        "targets": [
            {"what": t.what, "wanted": t.wanted, "found": t.found, "unit": t.unit, "reached": t.reached} for t in judged
        ],
        "notes": figures.notes,
    }
