"""Rows of token ids for training: passages in V4's chat markup, and plain text.

There is no dialogue to train on, so questions are derived from their answers. An answer is always a passage of a work,
and the user asks for its continuation, for a name or a thing in it, or for any text.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

BOS, EOS = 0, 1
ANSWER_TOKENS = (30, 110)  # range of an answer's random length goal

SYSTEMS = [
    "You are a storyteller.",
    "You are a helpful assistant.",
    "You tell stories in the manner of old novels.",
    "Answer in a few sentences.",
    "You are a friendly storyteller. Answer briefly.",
]
GO_ON = ["Go on.", "Continue.", "What happened next?", "And then?", "Tell me more.", "Please go on."]
ANYTHING = [
    "Tell me a story.",
    "Tell me something.",
    "Write a short passage.",
    "Begin a story.",
    "Hello.",
    "Hello!",
    "Hi.",
    "Write a few sentences.",
    "Tell me a short story.",
    "What can you tell me?",
]
ABOUT_NAME = [
    "Tell me about {}.",
    "Who is {}?",
    "Write about {}.",
    "What happened to {}?",
    "Tell me a story about {}.",
    "What did {} do?",
    "Write a short story about {}.",
]
ABOUT_THING = [
    "Tell me about the {}.",
    "Write about the {}.",
    "Tell me a story about the {}.",
    "What about the {}?",
    "Write a few sentences about the {}.",
]
NAME = re.compile(r"(?<=[a-z,;] )(?:(?:Mr|Mrs|Dr)\. |(?:Miss|Lady|Sir|Captain|Colonel|Aunt) )?[A-Z][a-z]{2,}\b")
THING = re.compile(r"\b(?:the|a|an|his|her|my|their) ([a-z]{4,})\b")


@dataclass(frozen=True)
class Sentence:
    text: str
    first: list[int]  # ids if the sentence begins an answer
    joined: list[int]  # ids after another sentence: with a space, or a blank line if a paragraph begins
    opens: bool  # whether the sentence begins a paragraph


class Sampler:
    def __init__(self, corpus: Path, tokenizer: Path, part: str, seed: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.random = random.Random(seed)
        works = json.loads(corpus.read_text("utf-8"))[part]
        self.works = [self.encode_work(work) for work in works]
        self.weights = [len(work) for work in self.works]
        text = " ".join(sentence.text for work in self.works for sentence in work)
        self.names = {name for name, count in Counter(NAME.findall(text)).items() if count >= 8}
        self.things = {word for word, count in Counter(THING.findall(text)).items() if 8 <= count <= 300}

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_work(self, work: list[list[str]]) -> list[Sentence]:
        return [
            Sentence(text, self.encode(text), self.encode((" " if at else "\n\n") + text), at == 0)
            for paragraph in work
            for at, text in enumerate(paragraph)
        ]

    def row(self, length: int) -> list[int]:
        """Return `length` + 1 ids. Long rows are plain text more often than short ones."""
        plain = 0.25 if length <= 512 else 0.5
        ids = self.document(length) if self.random.random() < plain else self.chat(length)
        return ids[: length + 1]

    def document(self, length: int) -> list[int]:
        work = self.random.choices(self.works, self.weights)[0]
        at = self.random.randrange(len(work))
        ids = [BOS, *work[at].first]
        while len(ids) <= length:
            at += 1
            if at == len(work):
                ids.append(EOS)
                work, at = self.random.choices(self.works, self.weights)[0], 0
                ids += [BOS, *work[0].first]
            else:
                ids += work[at].joined
        return ids

    def chat(self, length: int) -> list[int]:
        ids = [BOS]
        if self.random.random() < 0.25:
            ids += self.encode(self.random.choice(SYSTEMS))
        work: list[Sentence] = []
        at = 0
        while len(ids) <= length:
            if at < len(work) and self.random.random() < 0.55:
                question, thought = self.random.choice(GO_ON), "The user wants more. I will go on."
            else:
                work = self.random.choices(self.works, self.weights)[0]
                at, question, thought = self.new_topic(work)
            answer, at = self.passage(work, at)
            ids += self.encode(f"<｜User｜>{question}<｜Assistant｜>" + self.opening(thought)) + answer
        return ids

    def opening(self, thought: str) -> str:
        """Return the markup before an answer: mostly that of chat mode, sometimes that of thinking mode."""
        return f"<think>{thought}</think>" if self.random.random() < 0.08 else "</think>"

    def new_topic(self, work: list[Sentence]) -> tuple[int, str, str]:
        """Return the sentence at which the answer starts, the question, and a thought about it for thinking mode."""
        kind = self.random.random()
        at = self.random.randrange(1, len(work))
        if kind < 0.35:
            return at, f"Continue: {work[at - 1].text}", "The user gives a sentence. I will continue it."
        if kind < 0.55:
            while not work[at].opens and at > 0:
                at -= 1
            return at, self.random.choice(ANYTHING), "The user wants a story. I will begin one."
        for _ in range(20):
            question, topic = self.question_about(work[at].text)
            if question:
                return at, question, f"The user asks about {topic}. I will write about {topic}."
            at = self.random.randrange(len(work))
        return at, "Tell me a story.", "The user wants a story. I will begin one."

    def question_about(self, text: str) -> tuple[str, str]:
        names = [name for name in NAME.findall(text) if name in self.names]
        things = [word for word in THING.findall(text) if word in self.things]
        if names and (not things or self.random.random() < 0.6):
            name = self.random.choice(names)
            return self.random.choice(ABOUT_NAME).format(name), name
        if things:
            thing = self.random.choice(things)
            return self.random.choice(ABOUT_THING).format(thing), f"the {thing}"
        return "", ""

    def passage(self, work: list[Sentence], at: int) -> tuple[list[int], int]:
        """Return an answer that starts at sentence `at`, with EOS, and the number of the sentence after it.

        The answer ends once it has its random goal of tokens, or at the end of a paragraph after half the goal.
        """
        goal = self.random.randint(*ANSWER_TOKENS)
        ids = list(work[at].first)
        at += 1
        while at < len(work) and len(ids) < goal and not (work[at].opens and len(ids) > goal / 2):
            ids += work[at].joined
            at += 1
        return [*ids, EOS], at
