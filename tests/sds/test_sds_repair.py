"""Members that repair a missing message and their times: known answers of both implementations, and invariants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sds_messages import VECTORS, ids, in_each

from cablestore.errors import SdsError
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.hashes import sha256_hash
from cablestore.sds.repair import (
    RepairParameters,
    groups_for,
    is_in_response_group,
    request_delay_ms,
    response_delay_ms,
)


@st.composite
def parameters(draw: st.DrawFn) -> RepairParameters:
    t_min_ms = draw(st.integers(0, 10**6))
    return RepairParameters(t_min_ms, t_min_ms + draw(st.integers(1, 10**6)), draw(st.integers(1, 50)))


@pytest.mark.parametrize("known", VECTORS["repair"], ids=lambda known: f"{known['participant']} {known['message'][:8]}")
def test_times_and_groups_equal_those_of_both_implementations(known: dict[str, Any]) -> None:
    own, sender, message = known["participant"], known["sender"], known["message"]
    agreed = RepairParameters(known["t_min_ms"], known["t_max_ms"], known["groups"])
    assert sha256_hash(own + message) == int(known["js_hash_participant_message"])
    for dialect, column in ((SPEC, "js"), (NIM, "nim")):
        assert request_delay_ms(own, message, agreed, dialect) == known[f"{column}_t_req_ms"]
        assert response_delay_ms(own, sender, message, agreed, dialect) == known[f"{column}_t_resp_ms"]
        assert is_in_response_group(own, sender, message, agreed, dialect) == known[f"{column}_in_group"]


@in_each
@given(own=ids, sender=ids, message=ids, agreed=parameters())
def test_delays_are_within_their_bounds_and_the_same_each_time(
    dialect: SdsDialect, own: str, sender: str, message: str, agreed: RepairParameters
) -> None:
    asked_ms = request_delay_ms(own, message, agreed, dialect)
    assert agreed.t_min_ms <= asked_ms < agreed.t_max_ms
    assert asked_ms == request_delay_ms(own, message, agreed, dialect)
    answered_ms = response_delay_ms(own, sender, message, agreed, dialect)
    assert 0 <= answered_ms < agreed.t_max_ms
    assert answered_ms == response_delay_ms(own, sender, message, agreed, dialect)
    assert response_delay_ms(sender, own, message, agreed, dialect) == answered_ms


@in_each
@given(own=ids, message=ids, agreed=parameters())
def test_the_author_of_a_message_answers_immediately(
    dialect: SdsDialect, own: str, message: str, agreed: RepairParameters
) -> None:
    assert response_delay_ms(own, own, message, agreed, dialect) == 0
    assert is_in_response_group(own, own, message, agreed, dialect)


@in_each
@given(own=ids, sender=ids, message=ids)
def test_a_single_group_contains_all_members(dialect: SdsDialect, own: str, sender: str, message: str) -> None:
    assert is_in_response_group(own, sender, message, RepairParameters(groups=1), dialect)


@in_each
def test_groups_have_similar_sizes_and_delays_are_spread(dialect: SdsDialect) -> None:
    agreed = RepairParameters(groups=10)
    people = [f"participant {number}" for number in range(5_000)]
    in_group = sum(is_in_response_group(each, "sender", "message", agreed, dialect) for each in people)
    assert in_group == pytest.approx(500, abs=100)
    span_ms = agreed.t_max_ms - agreed.t_min_ms
    asked = Counter((request_delay_ms(each, "m", agreed, dialect) - agreed.t_min_ms) * 10 // span_ms for each in people)
    assert all(asked[tenth] == pytest.approx(500, abs=100) for tenth in range(10))
    answered = [response_delay_ms(each, "sender", "m", agreed, dialect) for each in people]
    assert len(set(answered)) > 1_000
    assert sum(answered) / len(answered) == pytest.approx(agreed.t_max_ms / 2, rel=0.1)


def test_defaults_are_those_of_the_npm_package_and_within_the_specification() -> None:
    known, spec = VECTORS["defaults"]["js"], VECTORS["defaults"]["spec"]
    agreed = RepairParameters()
    assert (agreed.t_min_ms, agreed.t_max_ms) == (known["T_min_ms"], known["T_max_ms"])
    assert (spec["T_min_s"], spec["T_max_s"], spec["groups"]) == (">=30", "120..600", "n div 128 + 1")
    assert agreed.t_min_ms >= 30_000
    assert 120_000 <= agreed.t_max_ms <= 600_000
    assert [groups_for(people) for people in (0, 1, 127, 128, 255, 256)] == [1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(("t_min_ms", "t_max_ms", "groups"), [(5, 5, 1), (6, 5, 1), (-1, 5, 1), (1, 5, 0), (1, 5, -1)])
def test_invalid_repair_parameters_are_rejected(t_min_ms: int, t_max_ms: int, groups: int) -> None:
    with pytest.raises(SdsError, match="invalid repair settings"):
        RepairParameters(t_min_ms, t_max_ms, groups)
