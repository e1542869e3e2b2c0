"""Two chat users with one store each. The program copies the posts between the stores without a network."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cablestore import CableStore
from cablestore.store import answers


def sync(source: CableStore, target: CableStore, channel: str) -> int:
    """Copy the posts of a channel that `target` lacks, as peers do. Return how many posts `target` accepted.

    `source` offers the hashes of its posts, and `target` requests the posts that it lacks.
    """
    with source.snapshot() as theirs, target.snapshot() as ours:
        offered = [
            *answers.channel_state(theirs.reader, channel),
            *answers.channel_time_range(theirs.reader, channel, 0, 0),
        ]
        wanted = list(answers.worth_requesting(ours.reader, offered))
        posts = list(answers.post_request(theirs.reader, wanted))
    return sum(outcome.verdict.name == "ACCEPTED" for outcome in target.ingest(posts))


def show(store: CableStore, channel: str) -> None:
    """Print the topic and the latest messages of a channel, oldest first."""
    print(f"#{channel}: {store.topic(channel)}")
    for message in reversed(store.messages(channel, 20).messages):
        print(f"  {message.name}: {message.text}")


with tempfile.TemporaryDirectory() as folder:
    ann, bob = CableStore.open(Path(folder) / "ann"), CableStore.open(Path(folder) / "bob")
    with ann, bob:
        ann.set_name("ann")
        ann.join("default")
        ann.set_topic("default", "greetings")
        question = ann.post("default", "anyone here?")
        print("bob receives", sync(ann, bob, "default"), "posts")

        bob.set_name("bob")
        bob.join("default")
        answer = bob.post("default", "I am!")
        assert set(answer.links)  # the answer links to the question
        print("ann receives", sync(bob, ann, "default"), "posts")

        ann.delete(question.hash)
        sync(ann, bob, "default")
        show(bob, "default")
        assert [user.name for user in bob.members("default")] == [user.name for user in ann.members("default")]
