"""Parts of an open store, for other packages of cablestore. They are not part of the public API."""

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
    """Parts of a store that is open in this process: `CableStore.parts`."""

    engine: Engine
    present: Present
    intake: Intake
    writer: Writer

    def appraise(self, posts: list[bytes], dialect: Dialect) -> list[Outcome]:
        """Check encoded posts that peers forward, without storing them. ACCEPTED posts may be forwarded."""
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
