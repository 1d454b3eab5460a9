"""Search spaces, sampler and scheduler of a sweep, as Ray Tune and Optuna take them."""

from __future__ import annotations

from typing import Any

from cse.settings.load import flatten
from cse.settings.spaces import Dimension, Space
from cse.tune.job import Job

_STARTUP = 4  # random trials before TPE starts
EVALUATIONS = 4  # of an Optuna trial, evenly spaced; trials that fall behind stop there


def domain(part: Dimension, *, grid: bool) -> Any:
    """Return a dimension for Ray Tune: a grid over the listed values, or values and ranges to sample from."""
    from ray import tune

    if part.values:
        return tune.grid_search(list(part.values)) if grid else tune.choice(list(part.values))
    if part.whole:
        whole = tune.lograndint if part.log else tune.randint
        return whole(int(part.low), int(part.high) + 1)
    return (tune.loguniform if part.log else tune.uniform)(part.low, part.high)


def sampler(space: Space, job: Job) -> Any:
    """Return Optuna's TPE sampler; it first tries the current settings if they lie in the space."""
    import optuna
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    now = flatten(job.settings.model_dump(mode="json"))
    start = {part.key: now[part.key] for part in space.dimensions if part.holds(now[part.key])}
    wanted = job.settings.tune
    sampler = TPESampler(
        seed=job.settings.train.seed,
        n_startup_trials=min(_STARTUP, max(wanted.trials // 3, 1)),
        multivariate=True,
        constant_liar=True,  # trials run at the same time
    )
    return OptunaSearch(sampler=sampler, points_to_evaluate=[start] if len(start) == len(space.dimensions) else None)


def scheduler(job: Job) -> Any:
    """Return an ASHA scheduler over percentage done, since steps of different batch sizes are not comparable."""
    from ray.tune.schedulers import ASHAScheduler

    if job.evaluations is None:
        return None
    first = max(100 // job.evaluations, 1)
    return ASHAScheduler(time_attr="percent", max_t=101, grace_period=first, reduction_factor=2)
