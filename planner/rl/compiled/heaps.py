"""Binary heaps of (key, item) in slices of flat arrays, smallest first, ties to the smaller item."""

from numba import njit


@njit(cache=True)
def push(keys, items, base, size, key, item):
    """Adds to the heap of `size` entries that starts at `base`; the caller counts one more."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[base + above] < key or (keys[base + above] == key and items[base + above] < item):
            break
        keys[base + at] = keys[base + above]
        items[base + at] = items[base + above]
        at = above
    keys[base + at] = key
    items[base + at] = item


@njit(cache=True)
def drop(keys, items, base, size):
    """Removes the first of the heap of `size` entries that starts at `base`; the caller counts one less."""
    last = size - 1
    key, item = keys[base + last], items[base + last]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        right = below + 1
        if right < last and (
            keys[base + right] < keys[base + below]
            or (keys[base + right] == keys[base + below] and items[base + right] < items[base + below])
        ):
            below = right
        if key < keys[base + below] or (key == keys[base + below] and item < items[base + below]):
            break
        keys[base + at] = keys[base + below]
        items[base + at] = items[base + below]
        at = below
    keys[base + at] = key
    items[base + at] = item
