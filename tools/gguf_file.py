"""GGUF files for the project's measuring scripts: read, de-quantise, write. Needs numpy only.

Written from the published description of the format (ggml's docs/gguf.md) and of its block types
(ggml-common.h), and kept apart from the engine's own C loader on purpose: the two check each other.
"""
import mmap
import struct

import numpy as np

MAGIC = b"GGUF"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
U32, F32_VALUE, BOOL, I32 = 4, 6, 7, 5
# type id: (name, elements per block, bytes per block)
TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
         7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
         14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2)}
TYPE_IDS = {name: type_id for type_id, (name, _, _) in TYPES.items()}


class Tensor:
    """shape: rows first, as numpy has it (the file stores the fastest dimension first)."""

    def __init__(self, name, shape, type_id, data):
        self.name, self.shape, self.type_id, self.data = name, shape, type_id, data

    @property
    def type_name(self):
        return TYPES[self.type_id][0]

    def rows(self, index=slice(None)):
        """The chosen rows (of a matrix; a vector is one row) in binary32."""
        n_cols = self.shape[-1]
        _, per_block, block_bytes = TYPES[self.type_id]
        raw = self.data.reshape(-1, n_cols // per_block * block_bytes)[index]
        return dequantise(np.ascontiguousarray(raw), self.type_id).reshape(raw.shape[0], n_cols)

    def values(self):
        return self.rows().reshape(self.shape)


class Gguf:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.pos = 0
        if self.take(4) != MAGIC:
            raise ValueError(f"{path}: not a GGUF file")
        self.version, n_tensors, n_kv = self.unpack("IQQ")
        if self.version not in (2, 3):
            raise ValueError(f"{path}: GGUF version {self.version}")
        self.meta, self.raw_meta = {}, {}
        for _ in range(n_kv):
            key = self.string()
            start = self.pos
            self.meta[key] = self.value(self.unpack("I")[0])
            self.raw_meta[key] = self.map[start:self.pos]
        infos = [self.tensor_info() for _ in range(n_tensors)]
        align = self.meta.get("general.alignment", 32)
        base = (self.pos + align - 1) // align * align
        view = np.frombuffer(self.map, dtype=np.uint8)
        self.tensors = {}
        for name, shape, type_id, offset in infos:
            if type_id not in TYPES:
                raise ValueError(f"{path}: tensor {name}: type {type_id} is not known here")
            _, per_block, block_bytes = TYPES[type_id]
            n_bytes = int(np.prod(shape)) // per_block * block_bytes
            self.tensors[name] = Tensor(name, shape, type_id, view[base + offset:base + offset + n_bytes])

    def take(self, n):
        data = self.map[self.pos:self.pos + n]
        if len(data) != n:
            raise ValueError(f"file ends at {self.pos + len(data)}")
        self.pos += n
        return data

    def unpack(self, fmt):
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))

    def string(self):
        return self.take(self.unpack("Q")[0]).decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.unpack("IQ")
            if item in SCALARS:
                return list(self.unpack(f"{n}{SCALARS[item]}"))
            return [self.value(item) for _ in range(n)]
        return self.unpack(SCALARS[kind])[0]

    def tensor_info(self):
        name = self.string()
        n_dims, = self.unpack("I")
        dims = self.unpack(f"{n_dims}Q")
        type_id, offset = self.unpack("IQ")
        return name, tuple(reversed(dims)), type_id, offset


def halves(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def nibbles(raw):
    """Bytes b0..b15 hold elements 0..15 in their low and 16..31 in their high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def with_fifth_bits(low, words):
    """32 elements of four bits, and the word that holds the fifth bit of each."""
    bits = np.unpackbits(np.ascontiguousarray(words), axis=1, bitorder="little").astype(np.float32)
    return low + 16 * bits


def dequantise_q45_k(blocks, has_fifth):
    """d, dmin, 12 bytes of six-bit scales and minimums, fifth bits (bit g of byte i: element i of group g), nibbles."""
    n = len(blocks)
    head = blocks[:, 4:16].reshape(n, 3, 4)
    scales = np.concatenate([head[:, 0] & 63, (head[:, 2] & 15) | (head[:, 0] >> 6) << 4], axis=1)
    minimums = np.concatenate([head[:, 1] & 63, head[:, 2] >> 4 | (head[:, 1] >> 6) << 4], axis=1)
    low = blocks[:, -128:].reshape(n, 4, 1, 32)
    q = np.concatenate([low & 15, low >> 4], axis=2).reshape(n, 8, 32).astype(np.float32)
    if has_fifth:
        fifth = blocks[:, 16:48].reshape(n, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
        q += 16 * fifth.astype(np.float32)
    d = halves(blocks[:, 0:2]) * scales.astype(np.float32)
    minimum = halves(blocks[:, 2:4]) * minimums.astype(np.float32)
    return (d[:, :, None] * q - minimum[:, :, None]).reshape(n, 256)


def dequantise_q6_k(blocks):
    """Two halves of 128 elements: 64 bytes of nibbles, 32 bytes of two bits each; 16 signed scales; d."""
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(n, 2, 4, 32)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1) & 3
    q = (low | high << 4).astype(np.float32).reshape(n, 16, 16) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return (halves(blocks[:, 208:210]) * (scales[:, :, None] * q).reshape(n, 256)).astype(np.float32)


def dequantise(raw, type_id):
    name = TYPES[type_id][0]
    flat = raw.reshape(-1)
    if name == "F32":
        return flat.view("<f4")
    if name == "F16":
        return halves(flat)
    if name == "BF16":
        return (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = flat.reshape(-1, TYPES[type_id][2])
    d = halves(blocks[:, 0:2])
    if name == "Q8_0":
        return blocks[:, 2:].view(np.int8).astype(np.float32) * d
    if name == "Q4_0":
        return (nibbles(blocks[:, 2:]) - np.float32(8)) * d
    if name == "Q5_0":
        return (with_fifth_bits(nibbles(blocks[:, 6:]), blocks[:, 2:6]) - np.float32(16)) * d
    if name in ("Q4_K", "Q5_K"):
        return dequantise_q45_k(blocks, name == "Q5_K")
    if name == "Q6_K":
        return dequantise_q6_k(blocks)
    values = nibbles(blocks[:, 4:]) if name == "Q4_1" else with_fifth_bits(nibbles(blocks[:, 8:]), blocks[:, 4:8])
    return values * d + halves(blocks[:, 2:4])


def encode_string(text):
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def encode_value(kind, value):
    """A metadata value with its type in front; kind is a type id, or (ARRAY, item type id)."""
    if isinstance(kind, tuple):
        item = kind[1]
        body = b"".join(encode_string(v) if item == STRING else struct.pack("<" + SCALARS[item], v) for v in value)
        return struct.pack("<IIQ", ARRAY, item, len(value)) + body
    if kind == STRING:
        return struct.pack("<I", STRING) + encode_string(value)
    return struct.pack("<I" + SCALARS[kind], kind, value)


def write(path, raw_meta, tensors, align=32):
    """raw_meta: key -> encoded value. tensors: list of (name, shape, type id, function giving the bytes), so that
    one tensor at a time is in memory."""
    head = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(raw_meta))
    head += b"".join(encode_string(key) + value for key, value in raw_meta.items())
    offset, sizes = 0, []
    for name, shape, type_id, _ in tensors:
        _, per_block, block_bytes = TYPES[type_id]
        size = int(np.prod(shape)) // per_block * block_bytes
        head += encode_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), type_id, offset)
        offset += (size + align - 1) // align * align
        sizes.append(size)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % align))
        for (name, _, _, make), size in zip(tensors, sizes):
            data = make()
            if len(data) != size:
                raise ValueError(f"{name}: {len(data)} bytes, {size} expected")
            f.write(data + bytes(-size % align))
