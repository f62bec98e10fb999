"""Find stop strings in text that arrives in pieces.

The stop string that completes first wins; of several that complete at the same character, the one that starts
earliest. `depth` is the number of last characters that are the beginning of some stop string, and so must be held
back. A piece costs time in proportion to its length times the number of stop strings (Knuth, Morris and Pratt's
automaton, one per stop string).
"""

from collections.abc import Sequence


class StopMatcher:
    """Scans the pieces of one text. `scan` alone changes it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: none of them empty."""
        self._patterns = [_Pattern(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)

    @property
    def depth(self) -> int:
        """The number of last characters that may belong to a stop string that is not complete yet."""
        return max((pattern.matched for pattern in self._patterns), default=0)

    def scan(self, piece: str, counting: bool = True) -> tuple[int, str] | None:
        """Scan the next piece; returns (characters of it up to the end of the match, the stop string), or None.

        Matches are ignored while not `counting`. After a match the matcher must not be used again.
        """
        if self._first_characters.isdisjoint(piece) and not self.depth:
            return None
        for position, character in enumerate(piece, 1):
            complete = [pattern.text for pattern in self._patterns if pattern.advance(character)]
            if complete and counting:
                return position, max(complete, key=len)
        return None


class _Pattern:
    """One stop string and how many of its characters the text read so far ends with."""

    __slots__ = ("_shorter", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = _borders(text)

    def advance(self, character: str) -> bool:
        text, shorter, matched = self.text, self._shorter, self.matched
        while matched and text[matched] != character:
            matched = shorter[matched - 1]
        if text[matched] == character:
            matched += 1
        complete = matched == len(text)
        self.matched = shorter[matched - 1] if complete else matched
        return complete


def _borders(text: str) -> list[int]:
    """For each prefix: the length of its longest proper prefix that is also its suffix."""
    lengths = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = lengths[length - 1]
        if text[index] == text[length]:
            length += 1
        lengths[index] = length
    return lengths
