"""Binary heaps of (key, item) in slices of flat arrays, smallest first, ties to the smaller item."""

from planner.solvers.compilation.parts import part


@part
def push(keys, items, base, size, key, item):
    """Adds to the heap of `size` entries that starts at `base`; the caller counts one more."""
    place = size
    while place > 0:
        above = (place - 1) // 2
        if keys[base + above] < key or (keys[base + above] == key and items[base + above] < item):
            break
        keys[base + place] = keys[base + above]
        items[base + place] = items[base + above]
        place = above
    keys[base + place] = key
    items[base + place] = item


@part
def drop(keys, items, base, size):
    """Removes the first of the heap of `size` entries that starts at `base`; the caller counts one less."""
    last = size - 1
    key, item = keys[base + last], items[base + last]
    place = 0
    while True:
        below = 2 * place + 1
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
        keys[base + place] = keys[base + below]
        items[base + place] = items[base + below]
        place = below
    keys[base + place] = key
    items[base + place] = item
