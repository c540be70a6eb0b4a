"""The search on a GPU made of numbers: what it finds, in how much time, and what it never does."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pytest

from opbench.kernels.variant import Config
from opbench.results.tuning import Trial
from opbench.timing.racing import RaceSamples
from opbench.tuning.candidates import Candidates
from opbench.tuning.search import CompiledConfig, Search
from opbench.tuning.strategies import STRATEGIES
from support.fakes.simulated_tuning import GEMM, SimulatedBench, gemm_candidates, gemm_time, refusal


@functools.cache
def space() -> Candidates:
    """Return the configs of the fake GPU's product, which take a second to enumerate."""
    return gemm_candidates()


@functools.cache
def runnable() -> list[int]:
    """Return the numbers of the configs that the GPU does not refuse."""
    return [number for number in range(len(space())) if not refusal(space()[number])]


@functools.cache
def best_s() -> float:
    """Return the least time of all configs."""
    return min(gemm_time(space()[number]) for number in runnable())


def searched(
    strategy: str, budget_s: float, seed: int = 0, **world: object
) -> tuple[Search, SimulatedBench, list[Trial]]:
    bench = SimulatedBench(space(), seed=seed, **world)  # type: ignore[arg-type]
    kept: list[Trial] = []
    search = Search(space(), STRATEGIES[strategy](space(), seed), bench, kept.append)
    search.run(budget_s)
    return search, bench, kept


def exhaustive_s() -> float:
    """What compiling and racing everything would take, the GPU and eight compilers side by side."""
    bench = SimulatedBench(space())
    looked = sum(bench.look_s + 12 * (gemm_time(space()[n]) + bench.overhead_s) for n in runnable())
    return max(looked, len(runnable()) * bench.compile_s / bench.compilers)


@pytest.mark.parametrize("seed", range(3))
def test_a_percent_of_the_best_of_40000_configs_in_a_fiftieth_of_the_time(seed: int) -> None:
    assert len(space()) > 5000 and len(runnable()) > 5000
    within = 0.02 * exhaustive_s()
    search, bench, _ = searched("local", within, seed)
    finals = [gemm_time(space()[number]) for number in search.finalists(8)]
    assert min(finals) <= 1.01 * best_s()
    assert bench.now() <= within + 1, "the budget is kept, up to one race"


def test_random_search_is_far_from_it_in_the_same_time() -> None:
    search, _, _ = searched("random", 60)
    assert min(gemm_time(space()[n]) for n in search.finalists(8)) > 1.01 * best_s()


def test_what_cannot_fit_is_never_launched_and_what_is_wrong_never_wins() -> None:
    def wrong(config: Config) -> bool:
        return config["VECTOR"] == 4

    search, bench, kept = searched("local", 40, wrong=wrong)
    assert not [n for n in bench.launched if refusal(space()[n]) or wrong(space()[n])]
    assert search.leader is not None and space()[search.leader]["VECTOR"] != 4
    endings = {trial.ending for trial in kept}
    assert {"raced", "wrong"} <= endings and all(t.reason for t in kept if t.ending != "raced")


def test_every_config_is_tried_once_where_time_is_enough_and_all_is_kept() -> None:
    few = Candidates((c for n, c in enumerate(GEMM) if n % 200 == 0), dict(GEMM.tune))
    for strategy in ("local", "random"):
        kept: list[Trial] = []
        search = Search(few, STRATEGIES[strategy](few, 0), SimulatedBench(few), kept.append)
        assert search.run(1e6) == "every config tried"
        assert len(kept) == len(few) == len({tuple(t.config.items()) for t in kept})
        assert [t.at_s for t in kept] == sorted(t.at_s for t in kept)
        assert search.leader == min(
            (n for n in range(len(few)) if not refusal(few[n])), key=lambda n: gemm_time(few[n])
        ), "under two per cent of drift the fastest of all leads"


def test_what_an_earlier_process_tried_is_known_and_not_tried_again() -> None:
    _, _, before = searched("local", 20)
    bench, kept = SimulatedBench(space(), seed=5), list[Trial]()
    search = Search(space(), STRATEGIES["local"](space(), 0), bench, kept.append, spent_s=20)
    search.load_trials(before)
    leader = search.leader
    assert leader is not None and search.trials[leader].score == min(t.score for t in before if t.score)
    search.run(40)
    again = {tuple(t.config.items()) for t in before} & {tuple(t.config.items()) for t in kept}
    assert not again and kept[0].at_s > 20 and bench.now() < 21 + 1


def test_configs_to_begin_with_are_tried_first_and_once() -> None:
    first = [n for n in reversed(runnable()) if n][:5]
    bench, kept = SimulatedBench(space()), list[Trial]()
    search = Search(space(), STRATEGIES["local"](space(), 0), bench, kept.append, first_configs=[*first, first[0]])
    search.run(20)
    numbers = [space().number_of(trial.config) for trial in kept]
    assert set(first) <= set(numbers[: search.max_started_ahead]) and len(numbers) == len(set(numbers)) and 0 in numbers


def test_a_race_begins_with_the_first_compiled_config_and_few_compile_ahead() -> None:
    bench = SimulatedBench(space())
    compiling, begun, races = set[int](), bench.start_compiling, list[int]()
    race, compiled = bench.race, bench.compiled

    def start_compiling(numbers: Sequence[int]) -> None:
        compiling.update(numbers)
        begun(numbers)
        assert len(compiling) <= search.max_started_ahead

    def raced(numbers: Sequence[int], leader: int | None, until_s: float) -> Mapping[int, RaceSamples | Trial]:
        races.append(len(numbers))
        compiling.difference_update(numbers)
        return race(numbers, leader, until_s)

    def done(wait_s: float) -> list[CompiledConfig]:
        prepared = compiled(wait_s)
        compiling.difference_update(p.number for p in prepared if p.trial is not None)
        return prepared

    bench.start_compiling, bench.race, bench.compiled = start_compiling, raced, done  # type: ignore[method-assign]
    search = Search(space(), STRATEGIES["local"](space(), 0), bench, lambda trial: None)
    search.run(30)
    assert races[0] == 1 and max(races) <= 8 and sum(races) > 100


def test_the_default_is_a_finalist_however_slow_it_is() -> None:
    search, _, _ = searched("local", 30)
    assert 0 in search.finalists(8) and gemm_time(space()[0]) > 1.1 * best_s()


def test_the_model_of_optuna_searches_too() -> None:
    pytest.importorskip("optuna")
    search, _, kept = searched("bayesian", 12)
    numbers = [tuple(t.config.items()) for t in kept]
    assert len(numbers) == len(set(numbers)) and len(numbers) > 40
    assert min(gemm_time(space()[n]) for n in search.finalists(8)) < gemm_time(space()[0])


def test_a_leader_that_a_later_race_finds_wrong_leads_no_more() -> None:
    few = Candidates((c for n, c in enumerate(GEMM) if n % 200 == 0 and not refusal(c)), dict(GEMM.tune))
    bench = SimulatedBench(few)
    cheat = min(range(len(few)), key=lambda n: gemm_time(few[n]))
    genuine = bench.race

    def race(numbers: Sequence[int], leader: int | None, until_s: float) -> Mapping[int, RaceSamples | Trial]:
        wrong = Trial(few[cheat], "wrong", reason="wrong in timed sample 4")
        return {**genuine(numbers, leader, until_s), **({cheat: wrong} if leader == cheat else {})}

    bench.race = race  # type: ignore[method-assign]
    kept: list[Trial] = []
    search = Search(few, STRATEGIES["random"](few, 0), bench, kept.append)
    search.run(1e6)
    assert search.trials[cheat].ending == "wrong" and cheat not in search.finalists(8)
    assert search.leader == min((n for n in range(len(few)) if n != cheat), key=lambda n: gemm_time(few[n]))
