"""Tensors by name: by reference on one host, by READ between hosts (docs/use/tensors.md).

    pool = raas.tensor.Pool("weights", 64 << 20)
    draft = pool.empty((2, 3), "float32")
    numpy.asarray(draft)[:] = 1
    pool.put("layer0", draft)

    layer = raas.tensor.Reader("10.0.0.2", "weights", key).get("layer0")   # another program
    numpy.asarray(layer)                                                   # no copy, if it is of that host

A tensor that is held shows the bytes of its generation and no others; a reference to one that is over raises
`raas.Revoked`, whose `reason` is `stale`, `freed` or `revoked`.
"""

from __future__ import annotations

import json as _json
import mmap as _mmap
import pathlib as _pathlib
from typing import Any, Dict, List, Optional, Tuple, Union

from ._raas import Pool, Reader, Session, Tensor

__all__ = ["Pool", "Reader", "Tensor", "load"]

#: Longer headers are refused, as the format says.
_HEADER_BYTES_MAX = 100_000_000


def _read_header(data: memoryview) -> Tuple[Dict[str, Any], int]:
    """The tensors of a safetensors file, and where their bytes begin."""
    if len(data) < 8:
        raise ValueError(f"a safetensors file has at least 8 bytes, not {len(data)}")
    length = int.from_bytes(data[:8], "little")
    if length > min(_HEADER_BYTES_MAX, len(data) - 8):
        raise ValueError(f"a header of {length} bytes, in a file of {len(data)}: it is no safetensors file, or it was cut")
    header = _json.loads(bytes(data[8 : 8 + length]))
    if not isinstance(header, dict):
        raise ValueError("the header of a safetensors file is an object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _room(header: Dict[str, Any]) -> int:
    """Enough bytes for a pool of these: a block is at most a quarter longer than header and payload."""
    return 4096 + sum((end - begin + 512) * 5 // 4 for begin, end in (entry["data_offsets"] for entry in header.values()))


def load(
    path: Union[str, _pathlib.Path],
    pool: Optional[Pool] = None,
    *,
    prefix: str = "",
    key: Optional[str] = None,
    session: Optional[Session] = None,
) -> Pool:
    """Brings all tensors of a safetensors file into a pool, each under its own name behind `prefix`: one copy, from the
    file to its place. Without `pool` one is made, with the file's stem as its name. Readers see all of the tensors, or,
    if this fails, none.
    """
    path = _pathlib.Path(path)
    with open(path, "rb") as file, _mmap.mmap(file.fileno(), 0, access=_mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as data:
            header, begin = _read_header(data)
            made = pool if pool is not None else Pool(path.stem, _room(header), key=key, session=session)
            try:
                drafts: List[Tuple[str, Tensor]] = []
                for name, entry in header.items():
                    draft = made.empty(entry["shape"], entry["dtype"])
                    first, end = entry["data_offsets"]
                    if not 0 <= first <= end <= len(data) - begin or end - first != draft.nbytes:
                        raise ValueError(f"`{name}`: bytes {first} to {end} are not a tensor of {draft.nbytes} bytes")
                    with data[begin + first : begin + end] as part:
                        draft.write(part)
                    drafts.append((prefix + name, draft))
                for name, draft in drafts:
                    made.put(name, draft)
            except BaseException:
                if pool is None:
                    made.close()
                raise
    return made
