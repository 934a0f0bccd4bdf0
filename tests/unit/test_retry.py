"""The retry policy decides whether there is another try, and when."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fbtasks.errors import ConfigurationError, ConflictError, DatabaseError
from fbtasks.tasks.retry import CONFLICT_BACKOFF, RetryPolicy, RetryRule

seconds = st.floats(0, 1e9)
rngs = st.integers(0, 2**32).map(random.Random)
EXCEPTIONS = [OSError, ConnectionError, ConnectionResetError, LookupError, KeyError, ValueError, Exception]
rules = st.one_of(
    st.builds(RetryRule, max_retries=st.none() | st.integers(0, 20), delay=st.none() | seconds),
    st.builds(RetryRule, backoff=st.booleans() | seconds),
    seconds,
)
policies = st.builds(
    RetryPolicy,
    max_retries=st.none() | st.integers(0, 20),
    autoretry_for=st.lists(st.sampled_from(EXCEPTIONS)).map(tuple)
    | st.dictionaries(st.sampled_from(EXCEPTIONS), rules),
    dont_autoretry_for=st.lists(st.sampled_from(EXCEPTIONS), max_size=2).map(tuple),
    retry_backoff=st.booleans() | st.floats(0, 1e308),
    retry_backoff_max=seconds,
    retry_jitter=st.booleans(),
    default_retry_delay=seconds,
)
raised = st.sampled_from(EXCEPTIONS).map(lambda kind: kind("x"))


@given(policies, raised | st.none(), st.integers(0, 10_000) | st.just(10**400), rngs)
def test_a_delay_is_finite_and_within_bounds(policy, exc, retries, rng):
    longest = max(policy.retry_backoff_max, policy.default_retry_delay)
    for rule in policy.autoretry_for.values() if isinstance(policy.autoretry_for, dict) else ():
        longest = max(longest, (rule.delay or 0) if isinstance(rule, RetryRule) else rule)
    assert 0 <= policy.delay(retries, exc, rng) <= longest


@given(policies, raised, st.integers(1, 10_000), st.none() | st.integers(0, 10_000), rngs)
def test_decide_gives_a_delay_or_none(policy, exc, tries, max_tries, rng):
    wanted = any(isinstance(exc, kind) for kind in policy.autoretry_for)
    unwanted = any(isinstance(exc, kind) for kind in policy.dont_autoretry_for)
    delay = policy.decide(exc, tries, max_tries, rng)
    if unwanted or not wanted or (max_tries and tries >= max_tries):
        assert delay is None
    elif max_tries is not None:
        assert delay is not None
    if delay is not None:
        assert 0 <= delay < math.inf


def test_the_back_off_doubles_up_to_its_maximum():
    policy = RetryPolicy(retry_backoff=True, retry_backoff_max=60, retry_jitter=False)
    delays = [policy.delay(retries, None, random.Random(0)) for retries in (0, 1, 2, 3, 5, 6, 10_000)]
    assert delays == [1, 2, 4, 8, 32, 60, 60]
    assert RetryPolicy(retry_backoff=3, retry_jitter=False).delay(2, None, random.Random(0)) == 12


def test_full_jitter_draws_evenly_from_0_to_the_back_off():
    policy, rng = RetryPolicy(retry_backoff=100, retry_backoff_max=100), random.Random(7)
    drawn = [policy.delay(3, None, rng) for _ in range(5000)]
    assert min(drawn) < 1
    assert max(drawn) > 99
    assert 48 < sum(drawn) / len(drawn) < 52


def test_the_calls_own_limit_comes_first():
    rng = random.Random(0)
    policy = RetryPolicy(max_retries=1, autoretry_for={OSError: RetryRule(max_retries=5)})
    assert policy.decide(OSError(), 5, None, rng) is not None
    assert policy.decide(OSError(), 6, None, rng) is None
    assert policy.decide(OSError(), 2, 2, rng) is None
    assert policy.decide(OSError(), 100, 101, rng) is not None
    assert policy.decide(OSError(), 10_000, 0, rng) is not None


def test_a_conflict_is_tried_again_without_being_named():
    rng, conflict = random.Random(0), ConflictError("x")
    policy = RetryPolicy(max_retries=2)
    for tries in (1, 2):
        delays = [policy.after_conflict(conflict, tries, None, rng) or 0.0 for _ in range(100)]
        assert 0 < max(delays) <= CONFLICT_BACKOFF * 2 ** (tries - 1)
    assert policy.after_conflict(conflict, 3, None, rng) is None
    assert policy.after_conflict(conflict, 3, 4, rng) is not None
    assert RetryPolicy(max_retries=None).after_conflict(conflict, 10_000, None, rng) is not None
    assert RetryPolicy(dont_autoretry_for=(DatabaseError,)).after_conflict(conflict, 1, None, rng) is None
    backoff = RetryPolicy(retry_backoff=30, retry_jitter=False)
    assert backoff.after_conflict(conflict, 2, None, rng) == 60
    for named in ((ConflictError,), (Exception,)):
        assert RetryPolicy(autoretry_for=named, default_retry_delay=7).after_conflict(conflict, 1, None, rng) == 7
    ruled = RetryPolicy(autoretry_for={DatabaseError: RetryRule(delay=1, max_retries=9)})
    assert ruled.after_conflict(conflict, 9, None, rng) == 1
    assert ruled.after_conflict(conflict, 10, None, rng) is None


def test_the_most_specific_class_decides():
    policy = RetryPolicy(
        autoretry_for={
            OSError: 100,
            ConnectionError: RetryRule(backoff=2),
            ConnectionResetError: RetryRule(delay=5, max_retries=1),
            LookupError: RetryRule(max_retries=1),
            TimeoutError: RetryRule(backoff=False),
        },
        retry_jitter=False,
        retry_backoff=10,
        default_retry_delay=9,
    )
    rng = random.Random(0)
    assert policy.decide(PermissionError(), 3, None, rng) == 100
    assert policy.decide(BrokenPipeError(), 3, None, rng) == 8
    assert policy.decide(ConnectionResetError(), 1, None, rng) == 5
    assert policy.decide(ConnectionResetError(), 2, None, rng) is None
    assert policy.decide(KeyError(), 1, None, rng) == 10
    assert policy.decide(TimeoutError(), 1, None, rng) == 9
    assert policy.delay(2, ValueError(), rng) == 40


def test_the_mro_orders_the_choices():
    class Both(KeyError, OSError):
        pass

    for rules, delay in (({OSError: 1, LookupError: 2}, 2), ({Exception: 1}, 1), ({ValueError: 1}, None)):
        assert RetryPolicy(autoretry_for=rules).decide(Both(), 1, None, random.Random(1)) == delay


def test_a_group_is_what_is_in_it():
    """At any depth, as a TaskGroup raises it."""

    class Ours(ExceptionGroup, LookupError):
        pass

    def group(*inner):
        return ExceptionGroup("several", list(inner))

    def decided(exc, **options):
        policy = RetryPolicy(default_retry_delay=7, **options)
        return policy.decide(exc, 1, None, random.Random(0))

    deep = group(ValueError("a"), group(group(ConnectionResetError("b"))))
    named = (OSError,)
    assert decided(deep, autoretry_for=named) == 7
    assert decided(group(ValueError("a")), autoretry_for=named) is None
    assert decided(deep, autoretry_for=(Exception,)) == 7
    assert decided(deep, autoretry_for=(ExceptionGroup,)) == 7
    assert decided(deep, autoretry_for=named, dont_autoretry_for=(ConnectionError,)) is None
    assert decided(deep, autoretry_for=named, dont_autoretry_for=(KeyError,)) == 7
    assert decided(deep, autoretry_for={OSError: 1, ConnectionError: 2}) == 2
    assert decided(deep, autoretry_for={Exception: 1, ConnectionError: 2}) == 1  # by that of the first, a ValueError
    assert decided(deep, autoretry_for={Exception: 1, ExceptionGroup: 3}) == 3
    assert decided(Ours("ours", [ValueError()]), autoretry_for={Exception: 1, LookupError: 3}) == 3
    assert decided(BaseExceptionGroup("b", [KeyboardInterrupt(), OSError()]), autoretry_for=named) == 7


def test_the_policy_keeps_its_own_copy():
    kinds = [OSError]
    table = {OSError: 1}
    policies = RetryPolicy(autoretry_for=kinds), RetryPolicy(autoretry_for=table)
    kinds.append(ValueError)
    table[ValueError] = -1
    assert policies[0].autoretry_for == (OSError,)
    assert policies[1].autoretry_for == {OSError: 1}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_retries", -1),
        ("max_retries", True),
        ("autoretry_for", (int,)),
        ("autoretry_for", {OSError: -1}),
        ("autoretry_for", {OSError: True}),
        ("autoretry_for", {"OSError": 1}),
        ("dont_autoretry_for", (1,)),
        ("retry_backoff", -1),
        ("retry_backoff", math.inf),
        ("retry_backoff_max", -0.1),
        ("default_retry_delay", 10**400),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_name(option, value):
    with pytest.raises(ConfigurationError, match=option):
        RetryPolicy(**{option: value})


@pytest.mark.parametrize(
    "options",
    [{"max_retries": -1}, {"delay": -1}, {"delay": True}, {"backoff": math.nan}, {"delay": 1, "backoff": 2}],
)
def test_a_rule_that_cannot_be_used_is_refused(options):
    with pytest.raises(ConfigurationError, match="RetryRule"):
        RetryRule(**options)
