"""Token ids from a file: JSON (a list, or an object with "tokens") or numbers between white space."""
import json


def read(path, limit=None):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.lstrip()[:1] in ("[", "{"):
        ids = json.loads(text)
        ids = ids["tokens"] if isinstance(ids, dict) else ids
    else:
        ids = [int(word) for word in text.split()]
    return ids[:limit]
