"""CHAIR (Rohrbach et al. 2018): objects that captions mention and images do not show.

A mention is a word or a name of several words ("hot dog") in a caption. An object is in an image if it is annotated
there, or if a reference caption mentions it. The other mentions are hallucinated:

    CHAIR-i = hallucinated mentions / all mentions      CHAIR-s = captions with a hallucinated mention / all captions

An object that a caption mentions twice counts twice.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from showattendtell.inference.evaluator import Captions, EvaluationRun, RunMetric, RunScores, ask_for_boxes
from showattendtell.metrics.attention import CONTENT, word_class
from showattendtell.metrics.classes import GatheredMetric, scalars
from showattendtell.metrics.tokenizers import Caption, Words, split_captions
from showattendtell.readers.coco import CATEGORIES, PLURALS, Name, entries, find_names, forms, names_of, plural
from showattendtell.results.tables import Labels
from showattendtell.text.tokenizers import PlainTokenizer
from showattendtell.types import Caption as ReferenceCaption

Names = Mapping[Name, str]
"""The object of each name, by the words of the name; empty for a name such as "train track" that is not an object."""

WIDER_SYNONYMS = entries("""
person: male female mother father parent son daughter brother sister husband wife grandmother grandfather infant
newborn teen teenager youth passenger driver worker soldier cop firefighter cowboy bride groom student teacher doctor
nurse athlete golfer swimmer runner dancer singer musician drummer guitarist artist painter performer hiker climber
walker jogger shopper customer tourist traveler visitor waiter waitress cook baker barber farmer fisherman sailor
pilot bicyclist motorcyclist umpire referee coach goalie quarterback batsman bowler spectator bystander friend;
bicycle: tricycle;
car: automobile van minivan sedan suv hatchback cab taxi taxicab jeep limousine limo;
motorcycle: scooter moped motorbicycle;
airplane: jetliner biplane seaplane air-plane passenger-jet passenger-plane;
bus: minibus;
train: locomotive tram tramway streetcar caboose passenger-train;
truck: pickup lorry firetruck;
boat: ferry yacht rowboat motorboat speedboat dinghy gondola vessel barge;
traffic light: streetlight street-light;
bench: pew;
bird: duck duckling goose geese pigeon seagull gull owl eagle hawk falcon parrot parakeet swan chicken hen rooster
ostrich peacock pelican heron crow flamingo penguin sparrow robin hummingbird dove stork cockatoo;
cat: kitty feline tabby;
dog: pup doggy hound terrier retriever labrador poodle bulldog collie beagle dachshund chihuahua dalmatian greyhound
spaniel husky pug canine;
horse: colt foal mare stallion;
sheep: ram ewe;
cow: ox oxen heifer;
bear: panda;
backpack: rucksack knapsack;
umbrella: parasol;
handbag: pocketbook;
tie: bowtie bow-tie;
suitcase: suit-case;
surfboard: bodyboard boogie-board;
tennis racket: tennis-racquet;
wine glass: goblet;
sandwich: burger hamburger cheeseburger panini;
cake: cupcake cheesecake;
chair: seat stool armchair recliner;
couch: loveseat futon;
dining table: desk computer-desk;
toilet: toilet-seat commode;
laptop: computer;
mouse: computer-mouse;
keyboard: computer-keyboard;
cell phone: mobile-phone telephone;
oven: stove stovetop stove-top-oven
""")
"""Further synonyms of COCO's categories, in the singular, with hyphens within a name. They are ours, chosen by the
categories' names and hyponyms; the list of Rohrbach et al. differs in rare words."""

NO_OBJECTS = ("home plate", "train track", "baby animal", "adult animal", "baby cub", "adult cub")
SEATS = ("seat", "seats")
ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")


def coco_names() -> dict[Name, str]:
    """Return the names of COCO's 80 categories, singular and plural.

    As published, "baby" and "adult" before an animal are not persons, nor is "passenger" before a train or jet; home
    plates and train tracks are not objects.
    """
    names = {name: category for category in CATEGORIES for name in names_of(category)}
    for category, synonyms in WIDER_SYNONYMS.items():
        names |= {name: category for synonym in synonyms.split() for name in forms(synonym.replace("-", " "))}
    names |= {name: animal for animal in ANIMALS for age in ("baby", "adult") for name in forms(f"{age} {animal}")}
    return names | {name: "" for phrase in NO_OBJECTS for name in forms(phrase)}


Mention = tuple[int, str]
"""A name in a caption: the index of its last word, and its object."""


def find_mentions(words: Sequence[str], names: Names) -> list[Mention]:
    """Return the objects that a caption mentions, in order; of overlapping names the longest counts."""
    mentions = [(word, category) for word, category in find_names(words, names) if category]
    if not any(category == "toilet" for _, category in mentions):
        return mentions
    # "the seat of the toilet" is not a chair
    return [(word, category) for word, category in mentions if category != "chair" or words[word] not in SEATS]


def find_hallucinations(
    caption: Words, references: Sequence[Words], annotated: Collection[str], names: Names
) -> tuple[list[Mention], list[Mention]]:
    """Return all mentions of a caption, and the hallucinated ones.

    Args:
        caption: in words, lower case without punctuation, as the references.
        references: reference captions of the image.
        annotated: objects that are annotated in the image.
        names: names of objects.
    """
    mentions = find_mentions(caption, names)
    present = {*annotated, *(category for words in references for _, category in find_mentions(words, names))}
    return mentions, [mention for mention in mentions if mention[1] not in present]


def hallucination_rates(mentions: Iterable[tuple[Sequence[Mention], Sequence[Mention]]]) -> dict[str, float]:
    """Return `chair_i` and `chair_s` in percent, and `chair_mentions`, the number of mentions.

    Args:
        mentions: for each image what `find_hallucinations` returned.
    """
    counts = [(len(found), len(hallucinated)) for found, hallucinated in mentions]
    num_mentions, num_hallucinated = sum(count for count, _ in counts), sum(count for _, count in counts)
    return {
        "chair_i": 100 * num_hallucinated / max(num_mentions, 1),
        "chair_s": 100 * sum(count > 0 for _, count in counts) / max(len(counts), 1),
        "chair_mentions": float(num_mentions),
    }


class CHAIR(GatheredMetric):
    """Rates of hallucinated objects in captions (Rohrbach et al. 2018).

    `compute` returns what `hallucination_rates` returns, of all captions so far.

    Args:
        names: the object of each name; by default names of COCO's 80 categories (`coco_names`).
    """

    higher_is_better = False

    def __init__(self, names: Names | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._names = coco_names() if names is None else dict(names)

    def update(
        self,
        hypotheses: Sequence[Caption],
        references: Sequence[Sequence[Caption]],
        objects: Sequence[Iterable[str]] | None = None,
    ) -> None:
        """Add the captions of a batch, in lower case without punctuation.

        Args:
            hypotheses: one caption per image.
            references: reference captions of each image; the objects that they mention are in the image.
            objects: annotated objects of each image; none by default.

        Raises:
            ValueError: the numbers of images differ, or a list of captions is a string.
        """
        captions = split_captions(hypotheses, "the hypotheses")
        reference_captions = [split_captions(each, "the references of an image") for each in references]
        annotated = [[] for _ in captions] if objects is None else map(list, objects)
        self.append(zip(captions, reference_captions, annotated, strict=True))

    def compute(self) -> dict[str, Tensor]:
        """Return the rates so far; 0 without captions."""
        named = partial(find_hallucinations, names=self._names)
        return scalars(hallucination_rates(named(*item) for item in self.items()))


MIN_PHRASES = 10
"""Minimum number of annotated phrases of a noun."""

NOUN_RATE = 0.5
"""Minimum fraction of a word's occurrences that are the noun of an annotated phrase. Others, such as "watch", are
mostly verbs or adjectives."""

SYNONYMOUS = (
    "shirt tshirt top tanktop blouse sweatshirt",
    "pants jeans trousers slacks",
    "jacket coat parka windbreaker",
    "hat cap beanie helmet",
    "shoe sneaker boot sandal",
    "outfit uniform costume suit clothes clothing attire",
    "glass sunglasses eyeglasses goggles",
    "rock boulder cliff",
    "hill mountain slope",
    "street road sidewalk pavement",
    "water ocean sea lake river wave surf",
    "stick branch log twig",
    "picture photo photograph camera",
    "building house structure",
    "bag backpack sack purse handbag",
    "leash rope cord",
    "pole post rail railing bar",
    "sled toboggan",
    "bike bicycle motorbike motorcycle dirtbike bmx",
)
"""Nouns that name the same thing in captions of Flickr8k and Flickr30k, next to the synonyms of COCO's categories."""


def find_nouns(captions: Iterable[ReferenceCaption]) -> dict[Name, str]:
    """Return the nouns that captions with annotated phrases name things by, singular and plural, with their singular.

    Args:
        captions: with the phrases of Flickr30k Entities or COCO's instances.
    """
    heads, words = Counter[str](), Counter[str]()
    for caption in captions:
        words.update(caption.words)
        heads.update(caption.words[noun] for noun in {phrase.noun for phrase in caption.phrases})
    # the more frequent of two: "ladie" is a misspelling
    singulars = {plural(word): word for word in (*sorted(heads, key=lambda word: heads[word]), *PLURALS)}
    forms = defaultdict[str, list[str]](list)  # by the singular
    for word in heads:
        if word_class(word) == CONTENT:
            forms[singulars.get(word, word)].append(word)
    nouns: dict[Name, str] = {}
    for singular, own in forms.items():
        count = sum(heads[form] for form in own)
        if count >= MIN_PHRASES and count >= NOUN_RATE * sum(words[form] for form in own):
            nouns |= {(form,): singular for form in (*own, singular, plural(singular))}
    return nouns


def merge_synonyms(nouns: Mapping[Name, str]) -> dict[Name, str]:
    """Return the names of nouns with one object for synonyms: the category of COCO, or the first of `SYNONYMOUS`."""
    synonyms = {word: words.split()[0] for words in SYNONYMOUS for word in words.split()}
    categories = coco_names()
    return {
        name: synonyms.get(noun) or synonyms.get(categories.get((noun,), "")) or categories.get((noun,)) or noun
        for name, noun in nouns.items()
    }


class HallucinationMetric(RunMetric):
    """CHAIR of the best caption of each image. With COCO's instances the objects are its categories, else the nouns of
    phrases with ground-truth boxes."""

    labels: Labels = MappingProxyType(
        {
            "chair_i": ("CHAIR-i, % of mentioned objects", ".1f"),
            "chair_s": ("CHAIR-s, % of captions", ".1f"),
            "chair_mentions": ("mentioned objects", ",.0f"),
        }
    )

    def measure(self, run: EvaluationRun, captions: Captions, figures: Mapping[str, Any]) -> RunScores:
        """Return the scores, or the reason why there are none; `hallucinations` has the words by image."""
        if not isinstance(run.vocabulary.tokenizer, PlainTokenizer):
            reason = "objects are found by their English names, in the words of tokenizer=plain"
            return RunScores({}, {"chair": reason})
        examples, names = [example for example in run.examples if example.objects is not None], coco_names()
        variant = "coco" if examples else "nouns"
        if not examples:
            nouns = find_nouns(caption for example in run.dataset.examples() for caption in example.captions)
            examples, names = list(run.examples), merge_synonyms(nouns)
        if not names:
            return RunScores({}, {"chair": ask_for_boxes(run)})
        mentions, hallucinations = [], {}
        for example in examples:
            caption, references = captions[example.image][0], [reference.words for reference in example.captions]
            found, hallucinated = find_hallucinations(caption, references, example.objects or (), names)
            mentions.append((found, hallucinated))
            if hallucinated:
                hallucinations[example.image] = [caption[word] for word, _ in hallucinated]
        about = {"chair_objects": variant, "chair_images": len(examples), "hallucinations": hallucinations}
        return RunScores({**hallucination_rates(mentions), **about})
