"""The policy file: what it accepts, how errors are reported, and how commands change it."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY
from cablestore.errors import ArgumentError, NodeError
from cablestore.peers.policy import Policy, PostRate, chosen_action, chosen_kind, parse_policy, read_policy
from cablestore.peers.policy_keeper import PolicyKeeper, with_entry

KEY, OTHER = "ab" * 32, "cd" * 32
WHOLE = f"""
[authors]
allow = ["{KEY.upper()}"]
deny = ["{OTHER}"]
posts-per-minute = 60
burst = 600

[channels]
deny = ["spam"]

[peers]
deny = ["192.0.2.7", "2001:DB8:0::1", "Peer.Example", "{KEY}"]
posts-per-minute = 3000

[posts]
max-size = 4096
"""

WRONG = {
    "authors = 1": "invalid authors = 1: expected a table [authors]",
    "[author]\n": "unknown key author. Did you mean authors? Known keys: authors, channels, peers, posts",
    "[authors]\ndenied = []": "unknown key authors.denied. Did you mean authors.deny? Known keys: allow, deny",
    "[channels]\nburst = 1": "unknown key channels.burst. Known keys: allow, deny",
    '[authors]\ndeny = "x"': "invalid authors.deny = 'x': expected an array of strings",
    '[authors]\ndeny = ["abc"]': "authors.deny: invalid author 'abc': expected a public key of 64 hex digits",
    "[authors]\nposts-per-minute = 0": "invalid authors.posts-per-minute = 0: expected a whole number from 1",
    "[authors]\nposts-per-minute = true": "invalid authors.posts-per-minute = true: expected a whole number",
    "[authors]\nposts-per-minute = 1.5": "invalid authors.posts-per-minute = 1.5: expected a whole number",
    "[peers]\nburst = 5": "peers.burst requires peers.posts-per-minute",
    '[peers]\ndeny = ["a b"]': "peers.deny: invalid peer 'a b': expected an IP address, a host name or 64 hex digits",
    '[channels]\nallow = [""]': "channels.allow: invalid channel ''",
    "[posts]\nmax-size = 999999999": "invalid posts.max-size = 999999999: expected a whole number from 1 to 262144",
    "[posts\n": "Expected",
}
"""Invalid files, and what the error names."""


@pytest.mark.parametrize(
    ("key", "most"),
    [("posts]\nmax-size", 262_144), ("authors]\nposts-per-minute", 10**9), ("peers]\nposts-per-minute", 10**9)],
)
def test_numbers_are_accepted_up_to_their_limits(key: str, most: int) -> None:
    for number in (1, most):
        assert parse_policy(f"[{key} = {number}").has_rules
    for number in (0, -1, most + 1):
        with pytest.raises(ValueError, match=f"= {number}: expected a whole number from 1 to {most}"):
            parse_policy(f"[{key} = {number}")


def test_a_long_value_is_shown_in_part() -> None:
    for size, end in ((57, "x'"), (59, "...")):
        with pytest.raises(ValueError, match=r"invalid authors\.deny") as found:
            parse_policy(f'[authors]\ndeny = "{"x" * (size + 1)}"')
        assert str(found.value).partition(":")[0].endswith(end)
    assert parse_policy(f'[peers]\ndeny = ["{"x" * 63}"]').peers.deny == {"x" * 63}
    with pytest.raises(ValueError, match="expected an IP address, a host name or 64 hex digits"):
        parse_policy(f'[peers]\ndeny = ["{"x" * 64}"]')


def test_names_have_one_spelling_and_limits_have_defaults() -> None:
    policy = parse_policy(WHOLE)
    assert [*policy.authors.allow, *policy.authors.deny] == [KEY, OTHER]
    assert policy.authors.rate == PostRate(60, 600)
    assert policy.peers.rate == PostRate(3000, 3000)
    assert policy.peers.deny == {"192.0.2.7", "2001:db8::1", "peer.example", KEY}
    assert policy.posts.max_size == 4096
    assert policy.has_rules
    assert not parse_policy("").has_rules
    assert parse_policy("[channels]\ndeny = []\n") == Policy.EMPTY


def test_a_list_of_allowed_names_rejects_all_others() -> None:
    lists = parse_policy('[channels]\nallow = ["a"]\ndeny = ["b"]').channels
    assert [lists.rejects(name) for name in "abc"] == [False, True, True]
    both = parse_policy('[peers]\nallow = ["192.0.2.1"]\ndeny = ["192.0.2.1"]').peers
    assert both.rejects("192.0.2.1", KEY)


def test_channels_are_compared_as_the_dialect_does() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    policy = parse_policy(f'[channels]\ndeny = ["{decomposed}"]', DRAFT8)
    assert policy.channels.rejects(DRAFT8.channel_id(composed)) == (
        DRAFT8.channel_id(composed) == DRAFT8.channel_id(decomposed)
    )


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_an_invalid_file_is_described_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(NodeError) as caught:
        read_policy(file)
    assert str(caught.value).startswith(f"invalid policy in {file}: {message}")
    assert "\n" not in str(caught.value)


def test_missing_and_binary_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="No such file"):
        read_policy(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(NodeError, match="invalid policy in"):
        read_policy(tmp_path / "binary")


# --- changes ----------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: LEGACY.channel_id(name) == name
)


@given(st.lists(st.tuples(st.sampled_from(["allow", "deny", "remove"]), names), max_size=8))
def test_changes_equal_those_of_two_sets_and_keep_the_rest_of_the_file(steps: list[tuple[str, str]]) -> None:
    text = f"# first\n{WHOLE}\n# last\n"
    allowed, denied = set[str](), {"spam"}
    for action, name in steps:
        text = with_entry(text, chosen_action(action), "channel", name, LEGACY)
        for kind, lists in (("allow", allowed), ("deny", denied)):
            (lists.add if action == kind else lists.discard)(name)
        policy = parse_policy(text)
        assert (set(policy.channels.allow), set(policy.channels.deny)) == (allowed, denied)
    assert text.startswith("# first\n")
    assert text.rstrip().endswith("# last")
    assert tomllib.loads(text) | {"channels": 0} == tomllib.loads(WHOLE) | {"channels": 0}


FORMS = [
    "",
    "[channels]",
    "[channels]\ndeny = [ # reasons\n  'spam', # sells\n  \"a ] b\",\n]\n[posts]\nmax-size = 5\n",
    "[ channels ]\nallow = []\n",
    "[posts]\nmax-size = 5",
    'channels = { deny = ["spam"] }',
    'channels.deny = ["spam"]',
    "posts.max-size = 5\nchannels.allow = []",
]
"""Files as people write them."""


@pytest.mark.parametrize("text", FORMS)
def test_files_that_people_wrote_can_be_changed(text: str) -> None:
    changed = with_entry(text, "deny", "channel", "new", LEGACY)
    assert parse_policy(changed).channels.deny == parse_policy(text).channels.deny | {"new"}
    assert parse_policy(changed).posts == parse_policy(text).posts
    assert with_entry(text, "remove", "channel", "unknown", LEGACY) == text


def test_a_wrong_file_does_not_replace_the_policy(tmp_path: Path) -> None:
    async def main() -> None:
        changes: list[int] = []
        file = tmp_path / "policy.toml"
        loop = asyncio.get_running_loop()
        keeper = PolicyKeeper(file, LEGACY, loop, lambda: changes.append(keeper.version), is_chosen=False)
        assert keeper.policy == Policy.EMPTY
        assert keeper.change("deny", "author", KEY)
        assert not keeper.change("deny", "author", KEY.upper())
        assert parse_policy(file.read_text()).authors.deny == {KEY}
        assert keeper.change("allow", "author", KEY)
        assert [*keeper.policy.authors.allow, *keeper.policy.authors.deny] == [KEY]
        assert keeper.change("remove", "author", KEY)
        assert keeper.policy == Policy.EMPTY
        await asyncio.sleep(0)
        assert changes == [3, 3, 3]
        file.write_text("[posts]\nmax-size = 7\n")
        assert keeper.reload()
        file.write_text("[posts]\nmax-size = 0\n")
        for change in (keeper.reload, lambda: keeper.change("deny", "channel", "x")):
            with pytest.raises(NodeError, match="max-size = 0"):
                change()
        assert (keeper.policy.posts.max_size, keeper.version) == (7, 4)
        assert file.read_text() == "[posts]\nmax-size = 0\n"
        with pytest.raises(ArgumentError, match="invalid author 'nobody'"):
            keeper.change("deny", "author", "nobody")
        with pytest.raises(NodeError, match="No such file"):
            PolicyKeeper(tmp_path / "none", LEGACY, loop, lambda: None, is_chosen=True)
        with pytest.raises(NodeError, match="a store in memory has no policy file"):
            PolicyKeeper(None, LEGACY, loop, lambda: None, is_chosen=False).change("deny", "channel", "x")

    asyncio.run(main())


def test_commands_from_other_programs_are_checked() -> None:
    with pytest.raises(ArgumentError, match="invalid action 'ban': expected allow or deny or remove"):
        chosen_action("ban")
    with pytest.raises(ArgumentError, match="invalid kind 'user'"):
        chosen_kind("user")
