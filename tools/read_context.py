#!/usr/bin/env python3
"""Reads a context file by docs/context-format.md alone: none of the engine's code, the standard library only.

  tools/read_context.py FILE                          identity and token ids, as one JSON object
  tools/read_context.py FILE --tile LAYER HEAD TILE   keys and values of 64 tokens: JSON {"k": [64][d], "v": [64][d]}
Checksums are verified where the library xxhash is found ("checksums" says so). Unfinished files: what the last commit has.
"""
import contextlib
import ctypes.util
import json
import struct
import sys

SECTOR, SEGMENT, TILE, MOST = 4096, 4096, 64, 1 << 21
_hash = getattr(ctypes.CDLL(ctypes.util.find_library("xxhash")), "XXH3_64bits", None)  # no library: the program itself
if _hash:
    _hash.restype, _hash.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]


def up(value, step):
    return -(-value // step) * step


def check(what, data, wanted):
    if _hash and _hash(data, len(data)) != wanted:
        raise ValueError(f"{what}: checksum")


def whole(reader, places):  # what the reader says of each place where it finds no fault
    for place in places:
        with contextlib.suppress(ValueError):
            yield reader(place)


class Layout:
    """Places of everything, from the stored type (0 f16, 1 q8_0) and [(KV heads, head dimension)] of the layers."""
    def __init__(self, kind, layers):
        n, self.tile = len(layers), [(136 if kind else 256) * dim for _, dim in layers]
        self.group = [heads * tile for (heads, _), tile in zip(layers, self.tile)]
        self.block = [up(64 * group, 16384) for group in self.group]
        self.S, self.R = up(408 + 16 * n + 8, SECTOR), up(56 + 32 * n + 4 * SEGMENT + 8, SECTOR)
        self.C = up(64 + 4 * SEGMENT + 8 + sum(32 + SECTOR + group for group in self.group), SECTOR)
        self.D, self.stride = up(2 * self.S + 4 * self.C, 16384), up(sum(self.block) + 2 * self.R, 16384)

    def group_off(self, layer, segment, group):
        return self.D + segment * self.stride + sum(self.block[:layer]) + (group and group * self.group[layer])


class Context:
    def __init__(self, path):
        self.file = open(path, "rb")
        size = self.file.seek(0, 2)
        if not any(whole(self.superblock, range(0, min(size, MOST), SECTOR))):
            raise ValueError("no superblock of format version 2 that anything in the file belongs to")
        off = self.at.group_off(0, (size - self.at.D) // self.at.stride, 0)
        ends = [end[8:32] for end in self.copies(off, SECTOR, b"SLUICEEN") if size == off + 2 * SECTOR]
        generation, n, ids, sums, alone, last = self.newest(ends)
        self.finished, count = generation == 0, n // SEGMENT
        ways = self.ways(0, bytes(8))
        if generation:  # then segments committed by their records alone
            ways = [way for way in ways if [bytes(8), *(r[0] for r in way)][count:][:1] == [last]]
            ways = [way if way[count:] and not alone and way[count][3][:len(ids)] == ids else way[:count] for way in ways]
        else:  # it ends with its end record, twice: else it was cut off
            ways = [way for way in ways if way and struct.pack("<Q", sum(r[2] for r in way)) + way[-1][0] + self.mark in ends]
        ways = [way for i, way in enumerate(ways) if len(way) == max(map(len, ways)) and way not in ways[:i]]
        if len(ways) != 1:
            raise ValueError(f"{size} bytes: cut off, or records that do not fit each other, or that fit in two ways")
        more = [(0, 0, 0, ids, sums)] if generation and len(ways[0]) == count else []
        self.ids, self.sums = [token for r in ways[0] + more for token in r[3]], [r[4] for r in ways[0] + more]

    def read(self, off, size, magic=None):
        """Bytes of the file; those of a structure are believed by its magic and the checksum that ends it."""
        self.file.seek(off)
        data = self.file.read(size)
        if len(data) != size or (magic and data[:8] != magic):
            raise ValueError(f"offset {off}: no {magic or f'{size} bytes there'}")
        if magic:
            check(magic, data[:-8], struct.unpack("<Q", data[-8:])[0])
        return data

    def superblock(self, off):
        size, = struct.unpack_from("<I", self.read(off, SECTOR), 16)
        data = self.read(off, size if SECTOR <= size <= MOST and off in (0, size) else 8, b"SLUICEKV")
        self.mark = data[-8:]
        keys = ("format_version arithmetic_version S type n_layers flags model_low model_high tokenizer rope_kind rope_dims "
                "rope_base rope_scale rope_factors n_vocab name_bytes attn_scale softcap").split()
        self.identity = dict(zip(keys, struct.unpack_from("<6I3Q2I2dQ2I2f", data, 8)))
        self.identity["name"] = data[112:112 + self.identity["name_bytes"]].decode(errors="replace")
        self.layers = [struct.unpack_from("<II", data, 368 + 16 * i) for i in range(self.identity["n_layers"])]
        self.at = Layout(self.identity["type"], self.layers)
        first, at = self.at.group_off(len(self.layers), 0, 0) + 24, self.at
        marks = [2 * at.S + i * at.C + 32 for i in range(4)] + [first, first + at.R]  # of what stands in the file
        return self.identity["format_version"] == 2 and any(self.file.seek(o) and self.file.read(8) == self.mark for o in marks)

    def newest(self, is_ended):  # of the commit records that stand there twice or go on from another, or else of all
        def goes_on(a, b, other):  # from a commit of no tokens anything would: then b's other copy must have been begun
            records = self.copies(self.at.group_off(len(self.layers), b[1] // SEGMENT - 1, 0), self.at.R, b"SLUICERC")
            fits = a[2] == b[2][:len(a[2])] if a[5] == b[5] else b[5] in [r[-8:] for r in records]
            return a[0] + 1 == b[0] and fits and (a[1] or any(self.read(2 * self.at.S + other * self.at.C, SECTOR)))
        found = dict(whole(lambda copy: (copy, self.commit(copy)), range(4)))
        borne_out = [c for i, c in found.items() if c == found.get(i ^ 1) or any(goes_on(a, c, i ^ 1) for a in found.values())]
        return max(borne_out or ([] if is_ended else found.values()), default=(0, 0, [], [], 0, b""))

    def commit(self, copy):  # (generation, n, ids and part checksums of the open segment, alone, checksum before)
        off = 2 * self.at.S + copy * self.at.C
        generation, n, _, mark, previous, size, n_open, alone = struct.unpack_from("<3Q8s8sQII", self.read(off, 64), 8)
        data = self.read(off, min(size, self.at.C) if mark == self.mark else 8, b"SLUICECM")
        sums = struct.unpack_from(f"<{4 * len(self.layers)}Q", data, 64 + up(4 * n_open, 8))
        return generation, n, list(struct.unpack_from(f"<{n_open}i", data, 64)), sums, alone, previous

    def copies(self, off, size, magic):  # those that are whole; which one counts is another question
        return set(whole(lambda place: self.read(place, size, magic), (off, off + size)))

    def ways(self, segment, previous):
        """[[(checksum, the one before, tokens, ids, part checksums)]]: every way through records that follow each other."""
        ways, n_sums = [], 4 * len(self.layers)
        for data in self.copies(self.at.group_off(len(self.layers), segment, 0), self.at.R, b"SLUICERC"):
            at, n, _, mark, before = struct.unpack_from("<QII8s8s", data, 8)
            if (at, mark, before) == (segment, self.mark, previous) and (1 if self.finished else SEGMENT) <= n <= SEGMENT:
                ids, sums = struct.unpack_from(f"<{n}i", data, 56 + 8 * n_sums), struct.unpack_from(f"<{n_sums}Q", data, 56)
                after = self.ways(segment + 1, data[-8:]) if n == SEGMENT else [[]]
                ways += [[(data[-8:], before, n, list(ids), sums), *way] for way in after]
        return ways or [[]]

    def tile(self, layer, head, tile):
        """(K, V), each [64][d] numbers; the tile's part is verified if the file is finished or the part whole."""
        (n_heads, d), every = self.layers[layer], range(64)  # tokens
        segment, group, last = tile // 64, tile % 64, (len(self.ids) + (63 if self.finished else 0)) // TILE
        groups, size, start = min(16, last - tile // 16 * 16), self.at.group[layer], group // 16 * 16
        if tile >= last or head >= n_heads:
            raise ValueError(f"tile {tile}, head {head}: not in the file")
        if self.finished or groups == 16:
            part = self.read(self.at.group_off(layer, segment, start), groups * size)
            check(f"layer {layer}, segment {segment}", part, self.sums[segment][layer * 4 + group // 16])
        data = self.read(self.at.group_off(layer, segment, group) + head * self.at.tile[layer], self.at.tile[layer])
        if self.identity["type"] == 0:
            k, v = (struct.unpack_from(f"<{64 * d}e", data, off) for off in (0, 128 * d))
            return [[k[i * 64 + t] for i in range(d)] for t in every], [[v[t * d + i] for i in range(d)] for t in every]
        k, v = (struct.unpack_from(f"<{64 * d}b", data, off) for off in (0, 68 * d))
        ks, vs = (struct.unpack_from(f"<{2 * d}e", data, off) for off in (64 * d, 132 * d))
        return ([[k[t * d + i] * ks[i // 32 * 64 + t] for i in range(d)] for t in every],
                [[v[i * 64 + t] * vs[i // 32 * 64 + t] for i in range(d)] for t in every])


if __name__ == "__main__":
    context = Context(sys.argv[1])
    print(json.dumps(dict(zip("kv", context.tile(*map(int, sys.argv[3:6])))) if len(sys.argv) > 2 else
                     {"checksums": bool(_hash), "finished": context.finished, "tokens": len(context.ids),
                      **context.identity, "layers": context.layers, "ids": context.ids}))
