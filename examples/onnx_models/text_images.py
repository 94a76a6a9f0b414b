"""Rendered lines and pages of text: exact labels, any number, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage import data

Array = np.ndarray[Any, Any]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "gate", "scale", "integer"]
WORDS += ["board", "camera", "width", "night", "river", "seven", "letter", "paper", "window"]
WORDS += ["market", "garden", "bridge", "simple", "yellow", "morning", "number", "station"]
FONTS = ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf"]
LINE = (48, 192)


def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / name), size)


def _scaled(pixels: Array) -> Array:
    """(height, width, 3) bytes -> (1, 3, height, width) in [-1, 1], as all three nets take it."""
    return np.ascontiguousarray((pixels.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1)[None])


def _line(rng: np.random.Generator, words: int) -> tuple[Image.Image, str]:
    """One line of dark text on a light ground, or the other way round."""
    text = " ".join(rng.choice(WORDS, words))
    font = _font(str(rng.choice(FONTS)), int(rng.integers(26, 36)))
    left, top, right, bottom = font.getbbox(text)
    light, dark = int(rng.integers(190, 256)), int(rng.integers(0, 70))
    ground, ink = (light, dark) if rng.random() < 0.7 else (dark, light)
    image = Image.new("RGB", (int(right - left) + 16, int(bottom - top) + 14), (ground,) * 3)
    ImageDraw.Draw(image).text((8 - left, 7 - top), text, font=font, fill=(ink,) * 3)
    return image, text


def _fitted(image: Image.Image, height: int, width: int, rng: np.random.Generator) -> Array:
    """As high as the net wants, padded or cut on the right, with a little noise of a camera."""
    scaled = image.resize((max(1, image.width * height // image.height), height))
    pixels = np.zeros((height, width, 3), np.float32)
    part = np.asarray(scaled, np.float32)[:, :width]
    pixels[:, : part.shape[1]] = np.clip(part + rng.normal(0, 6, part.shape), 0, 255)
    pixels[:, part.shape[1] :] = 127.5
    return _scaled(pixels)


def directions(count: int, seed: int) -> tuple[list[Array], Array]:
    """Lines for the direction net, (1, 3, 48, 192) each, and labels: 1 is upside down."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = []
    for label in labels:
        image, _ = _line(rng, 2)
        images.append(_fitted(image.rotate(180) if label else image, *LINE, rng))
    return images, labels


def lines(count: int, seed: int, width: int = 320) -> tuple[list[Array], list[str]]:
    """Lines for the recognizer, (1, 3, 48, width) each, and their texts."""
    rng = np.random.default_rng(seed)
    images, texts = [], []
    while len(images) < count:
        image, text = _line(rng, 3)
        if image.width * 48 // image.height <= width:
            images.append(_fitted(image, 48, width, rng))
            texts.append(text)
    return images, texts


def pages(count: int, seed: int, size: int = 160) -> tuple[list[Array], list[list[Box]]]:
    """Words on a part of a photo, (1, 3, size, size) each, and the box of each word."""
    rng = np.random.default_rng(seed)
    photos = [data.chelsea(), data.coffee(), data.rocket(), data.astronaut()]
    images, boxes = [], []
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        top, left = (int(rng.integers(0, side - size)) for side in photo.shape[:2])
        page = Image.fromarray(photo[top : top + size, left : left + size])
        boxes.append([_word(page, row, rng) for row in range(int(rng.integers(2, 4)))])
        images.append(_scaled(np.asarray(page)))
    return images, boxes


def _word(page: Image.Image, row: int, rng: np.random.Generator) -> Box:
    """Write a word in the row's third of the page; its box."""
    text, font = str(rng.choice(WORDS)), _font(str(rng.choice(FONTS)), int(rng.integers(16, 26)))
    third = page.height // 3
    left = int(rng.integers(4, page.width // 3))
    top = row * third + int(rng.integers(2, third - 30))
    _, _, width, height = (int(edge) for edge in font.getbbox(text, anchor="lt"))
    ground = np.asarray(page.crop((left, top, left + width, top + height)))
    ink = (255, 255, 255) if ground.mean() < 128 else (0, 0, 0)
    ImageDraw.Draw(page).text((left, top), text, font=font, fill=ink, anchor="lt")
    return left, top, left + width, top + height
