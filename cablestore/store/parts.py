"""Parts of an open store, for the packages of cablestore that work on one. The API does not promise them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cablestore.index.engine import Engine
from cablestore.index.verdict import Outcome, Verdict
from cablestore.protocol.dialect import Dialect
from cablestore.store import answers
from cablestore.store.intake import Intake
from cablestore.store.present import Present
from cablestore.store.writing import Writer


@dataclass(frozen=True, slots=True)
class StoreParts:
    """Parts of an open store. `CableStore.parts` has those of a store of this process."""

    engine: Engine
    present: Present
    intake: Intake
    writer: Writer

    def appraise(self, posts: list[bytes], dialect: Dialect) -> list[Outcome]:
        """Check encoded posts that peers forward to each other, and store nothing. ACCEPTED posts may be forwarded."""
        intake = replace(self.intake, dialect=dialect)
        batch = intake.decode(posts)
        intake.verify(batch)
        with self.engine.reading() as reader:
            moderation = self.present.state.moderation
            verdicts = [
                answers.appraised(reader, moderation, post) if is_signed else Verdict.BAD_SIGNATURE
                for post, is_signed in zip(batch.posts, batch.signed(), strict=True)
            ]
        return batch.settle(verdicts)
