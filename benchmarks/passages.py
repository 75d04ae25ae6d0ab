"""Real text, out of copyright or of our own making, for figures that depend on what is read."""

from typing import Final

PASSAGES: Final = (
    # Lewis Carroll, Alice's Adventures in Wonderland, 1865
    (
        "Alice was beginning to get very tired of sitting by her sister on the bank, and of"
        " having nothing to do: once or twice she had peeped into the book her sister was"
        " reading, but it had no pictures or conversations in it, “and what is the use of a"
        " book,” thought Alice “without pictures or conversations?” So she was considering in"
        " her own mind (as well as she could, for the hot day made her feel very sleepy and"
        " stupid), whether the pleasure of making a daisy-chain would be worth the trouble of"
        " getting up and picking the daisies."
    ),
    # Jane Austen, Pride and Prejudice, 1813
    (
        "It is a truth universally acknowledged, that a single man in possession of a good"
        " fortune, must be in want of a wife. However little known the feelings or views of"
        " such a man may be on his first entering a neighbourhood, this truth is so well fixed"
        " in the minds of the surrounding families, that he is considered as the rightful"
        " property of some one or other of their daughters. “My dear Mr. Bennet,” said his"
        " lady to him one day, “have you heard that Netherfield Park is let at last?”"
    ),
    # Charles Darwin, On the Origin of Species, 1859
    (
        "When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in"
        " the distribution of the inhabitants of South America, and in the geological"
        " relations of the present to the past inhabitants of that continent. These facts"
        " seemed to me to throw some light on the origin of species—that mystery of mysteries,"
        " as it has been called by one of our greatest philosophers. On my return home, it"
        " occurred to me, in 1837, that something might perhaps be made out on this question"
        " by patiently accumulating and reflecting on all sorts of facts which could possibly"
        " have any bearing on it."
    ),
    # Herman Melville, Moby-Dick, 1851
    (
        "Call me Ishmael. Some years ago—never mind how long precisely—having little or no"
        " money in my purse, and nothing particular to interest me on shore, I thought I would"
        " sail about a little and see the watery part of the world. It is a way I have of"
        " driving off the spleen and regulating the circulation. Whenever I find myself"
        " growing grim about the mouth; whenever it is a damp, drizzly November in my soul,"
        " then I account it high time to get to sea as soon as I can."
    ),
    # The Constitution of the United States, 1787
    (
        "We the People of the United States, in Order to form a more perfect Union, establish"
        " Justice, insure domestic Tranquility, provide for the common defence, promote the"
        " general Welfare, and secure the Blessings of Liberty to ourselves and our Posterity,"
        " do ordain and establish this Constitution for the United States of America. All"
        " legislative Powers herein granted shall be vested in a Congress of the United"
        " States, which shall consist of a Senate and House of Representatives."
    ),
    # A program
    (
        "def merge(left, right):\n"
        '    """Merge two sorted lists into one sorted list."""\n'
        "    result = []\n"
        "    i = j = 0\n"
        "    while i < len(left) and j < len(right):\n"
        "        if left[i] <= right[j]:\n"
        "            result.append(left[i])\n"
        "            i += 1\n"
        "        else:\n"
        "            result.append(right[j])\n"
        "            j += 1\n"
        "    result.extend(left[i:])\n"
        "    result.extend(right[j:])\n"
        "    return result\n"
    ),
    # A conversation
    (
        "user\n"
        "What should I pack for a week of hiking in the mountains in early autumn?\n"
        "assistant\n"
        "For a week of hiking in early autumn you should be ready for warm days and cold"
        " nights. Pack several thin layers, a waterproof jacket, a warm hat and gloves, and"
        " good boots that you have already worn in. Take a map and a compass, a small"
        " first-aid kit, a headlamp with spare batteries, and enough water, or a way to make"
        " the water you find safe to drink."
    ),
    # Numbers and lists
    (
        "The planets in order of their distance from the Sun are Mercury, Venus, Earth, Mars,"
        " Jupiter, Saturn, Uranus, and Neptune. Mercury takes 88 days to go once around the"
        " Sun, Venus takes 225 days, Earth takes 365 days, and Mars takes 687 days. Jupiter"
        " takes almost 12 years, Saturn takes 29 years, Uranus takes 84 years, and Neptune"
        " takes 165 years. The largest of them is Jupiter, and the smallest of them is"
        " Mercury."
    ),
)
