"""24 prompts of mixed length, around the edges of pages; half of them begin alike, so that a warm cache is hit."""

LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 21, 31, 32, 33, 48, 63, 64, 65, 90, 127, 128, 129, 200, 257, 350, 480)

NEW_TOKENS = 64

TEXT = """\
The harbour town of Merrin lies where a slow river meets the sea. In spring the fishing boats leave before sunrise and
return at noon, and the market on the quay smells of salt, tar and fresh bread. Visitors often ask why the houses are
painted in so many colours. The answer is simple: sailors wanted to recognise their own front door from far out on the
water, so every family chose a colour that no neighbour used. Today the council keeps a book in which each colour is
written down, and nobody may repaint a wall without asking first.

Here is a recipe for the soup that every kitchen in Merrin knows. Cut two onions and three carrots into small pieces.
Heat a spoon of butter in a heavy pot, add the onions, and stir until they are soft. Add the carrots, a litre of water,
a pinch of salt and four potatoes. Let it boil for twenty minutes. Then add the fish, lower the heat, and wait until the
flesh comes off the bone. Serve it with dark bread.

def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius ** 2
    if shape.kind == "rectangle":
        return shape.width * shape.height
    raise ValueError(f"unknown shape {shape.kind}")

Question: A train leaves the station at nine o'clock and travels at sixty kilometres an hour. A second train leaves the
same station one hour later and travels at ninety kilometres an hour. When does the second train catch the first one?
Answer: In the hour before the second train leaves, the first one covers sixty kilometres. The second train gains thirty
kilometres every hour, so it needs two hours. It catches the first train at noon.

The library of the town owns eleven thousand books. The oldest is a handwritten atlas from 1562, which shows the coast as
it was before the great flood. Scholars come from abroad to compare its lines with modern maps, and they agree that the
sandbank north of the lighthouse has moved almost four kilometres to the east. The librarian, a patient woman named Odile
Brandt, turns the pages for them with wooden tweezers, because the paper has become as brittle as dry leaves.
"""  # noqa: E501 - the golden ids rest on this very text


def prompt_ids(encode):
    """The prompts as token ids; `encode` turns text into ids."""
    ids = encode(TEXT)
    assert len(ids) >= LENGTHS[-1], f"the text has only {len(ids)} tokens"
    starts = [0 if i % 2 else (7 * i) % 40 for i in range(len(LENGTHS))]
    return [(ids + ids)[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
