#!/usr/bin/env python3
"""Reads a context file by docs/context-format.md alone: none of the engine's code, the standard library only.

  tools/read_context.py FILE                          identity and token ids, as one JSON object
  tools/read_context.py FILE --tile LAYER HEAD TILE   keys and values of 64 tokens: JSON {"k": [64][d], "v": [64][d]}

Checksums are verified where the shared library xxhash is found ("checksums" says so). Of an unfinished file: what the last
commit has, tiles from its full tile groups only.
"""
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


def first_good(reader, places):  # what the reader says of the first place that is whole
    failure = None
    for place in places:
        try:
            return reader(place)
        except ValueError as error:
            failure = failure or error
    raise failure or ValueError("nothing there")


class Layout:
    """Places of everything, from the stored type (0 f16, 1 q8_0) and [(KV heads, head dimension)] of the layers."""

    def __init__(self, kind, layers):
        n = len(layers)
        self.tile = [(136 if kind else 256) * dim for _, dim in layers]
        self.group = [heads * tile for (heads, _), tile in zip(layers, self.tile)]
        self.block = [up(64 * group, 16384) for group in self.group]
        self.S, self.R = up(368 + 16 * n + 8, SECTOR), up(56 + 32 * n + 4 * SEGMENT + 8, SECTOR)
        self.C = up(64 + 4 * SEGMENT + 8 + sum(32 + SECTOR + group for group in self.group), SECTOR)
        self.D = up(2 * self.S + 4 * self.C, 16384)
        self.stride = up(sum(self.block) + 2 * self.R, 16384)

    def group_off(self, layer, segment, group):
        return self.D + segment * self.stride + sum(self.block[:layer]) + (group and group * self.group[layer])


class Context:
    def __init__(self, path):
        self.file = open(path, "rb")
        size = self.file.seek(0, 2)
        first_good(self.superblock, range(0, min(size, MOST), SECTOR))
        commits = [commit for copy in range(4) if (commit := self.commit(copy))]
        generation, n, ids, sums = max(commits, default=(0, 0, [], []))
        self.finished, self.ids, self.sums, previous = generation == 0, [], [], 0
        for segment in range(n // SEGMENT if commits else (size - self.at.D) // self.at.stride):
            previous = self.take(segment, previous)
        if self.finished:  # it ends with its end record, twice: else it was cut off
            off = self.at.group_off(0, len(self.sums), 0)
            end = first_good(lambda place: self.read(place, SECTOR, b"SLUICEEN"), (off, off + SECTOR))
            if (size, *struct.unpack_from("<QQ8s", end, 8)) != (off + 2 * SECTOR, len(self.ids), previous, self.mark):
                raise ValueError(f"{size} bytes: cut off, or the end record does not fit the others")
        try:
            while commits:  # segments committed by their records alone
                previous = self.take(len(self.sums), previous, ids if len(self.sums) == n // SEGMENT else [])
        except ValueError:
            if len(self.sums) == n // SEGMENT:
                self.ids, self.sums = self.ids + ids, self.sums + [sums]

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
        if self.identity["format_version"] != 2:
            raise ValueError(f"format version {self.identity['format_version']}: not known here")
        self.identity["name"] = data[112:112 + self.identity["name_bytes"]].decode(errors="replace")
        self.layers = [struct.unpack_from("<II", data, 368 + 16 * i) for i in range(self.identity["n_layers"])]
        self.at = Layout(self.identity["type"], self.layers)

    def commit(self, copy):
        """(generation, n, ids and part checksums of the open segment), or None."""
        off = 2 * self.at.S + copy * self.at.C
        generation, n, _, mark, _, size, n_open = struct.unpack_from("<3Q8s2QI", self.read(off, 64), 8)
        try:
            data = self.read(off, min(size, self.at.C), b"SLUICECM")
        except (ValueError, struct.error):
            return None
        sums = struct.unpack_from(f"<{4 * len(self.layers)}Q", data, 64 + up(4 * n_open, 8))
        return (generation, n, list(struct.unpack_from(f"<{n_open}i", data, 64)), sums) if mark == self.mark else None

    def take(self, segment, previous, ids=()):  # believes the record of a segment, in either copy; returns its checksum
        off = self.at.group_off(len(self.layers), segment, 0)
        data = first_good(lambda copy: self.read(off + copy * self.at.R, self.at.R, b"SLUICERC"), (0, 1))
        n, _, mark, before = struct.unpack_from("<II8sQ", data, 16)
        found = list(struct.unpack_from(f"<{n}i", data, 56 + 32 * len(self.layers)))
        if mark != self.mark or before != previous or not self.finished and (n, found[:len(ids)]) != (SEGMENT, list(ids)):
            raise ValueError(f"record of segment {segment}: does not follow the one before")
        self.ids += found
        self.sums.append(struct.unpack_from(f"<{4 * len(self.layers)}Q", data, 56))
        return struct.unpack("<Q", data[-8:])[0]

    def tile(self, layer, head, tile):
        """(K, V), each [64][d] numbers; the tile's part is verified if the file is finished or the part whole."""
        n_heads, d = self.layers[layer]
        segment, group, last = tile // 64, tile % 64, (len(self.ids) + (63 if self.finished else 0)) // TILE
        groups, size, start = min(16, last - tile // 16 * 16), self.at.group[layer], group // 16 * 16
        if tile >= last or head >= n_heads:
            raise ValueError(f"tile {tile}, head {head}: not in the file")
        if self.finished or groups == 16:
            part = self.read(self.at.group_off(layer, segment, start), groups * size)
            check(f"layer {layer}, segment {segment}", part, self.sums[segment][layer * 4 + group // 16])
        data = self.read(self.at.group_off(layer, segment, group) + head * self.at.tile[layer], self.at.tile[layer])
        every, each = range(64), range(d)  # tokens, dimensions
        if self.identity["type"] == 0:
            k, v = (struct.unpack_from(f"<{64 * d}e", data, off) for off in (0, 128 * d))
            return [[k[i * 64 + t] for i in each] for t in every], [[v[t * d + i] for i in each] for t in every]
        k, v = (struct.unpack_from(f"<{64 * d}b", data, off) for off in (0, 68 * d))
        ks, vs = (struct.unpack_from(f"<{2 * d}e", data, off) for off in (64 * d, 132 * d))
        return ([[k[t * d + i] * ks[i // 32 * 64 + t] for i in each] for t in every],
                [[v[i * 64 + t] * vs[i // 32 * 64 + t] for i in each] for t in every])


if __name__ == "__main__":
    context = Context(sys.argv[1])
    print(json.dumps(dict(zip("kv", context.tile(*map(int, sys.argv[3:6])))) if len(sys.argv) > 2 else
                     {"checksums": bool(_hash), "finished": context.finished, "tokens": len(context.ids),
                      **context.identity, "layers": context.layers, "ids": context.ids}))
