"""Writes what becomes of each case now."""

from corpus import ALL, FOLDER
from corpus.pipeline_files import FILES, refusal

for each in ALL:
    lines = [f"{name}: {each.become([value])[0]}\n" for name, value in each.cases.items()]
    (FOLDER / f"{each.name}.txt").write_text("".join(lines))
(FOLDER / "files.txt").write_text("".join(f"{name}: {refusal(text)}\n" for name, text in FILES.items()))
