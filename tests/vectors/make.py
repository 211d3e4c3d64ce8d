#!/usr/bin/env python3
"""Writes vectors.json: what each op must compute, said by numpy and JAX in float64.

Nothing here is derived from the compiler. Forward results are plain numpy, gradients are jax.vjp of a second, separately
written forward, and the two forwards are compared before anything is written. See README.md for the format.
"""
import itertools
import json
import math
import os
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np

VECTORS = []


# ------------------------------------------------------------------------------------------------ writing
class T:
    """A tensor with named dimensions: T("b s d", array). An empty string names a scalar's dims."""

    def __init__(self, dims, data, dtype=None):
        self.dims = dims.split()
        self.data = np.asarray(data)
        self.dtype = dtype or ("i32" if self.data.dtype.kind == "i" else "f64")
        assert self.data.ndim == len(self.dims), (dims, self.data.shape)
        assert self.data.dtype == {"i32": np.int32, "f64": np.float64, "f32": np.float32}[self.dtype], self.data.dtype

    def json(self):
        flat = [x.item() for x in self.data.reshape(-1)]  # an f32 widens to f64 exactly
        assert all(math.isfinite(x) for x in flat)
        return {"dtype": self.dtype, "dims": [[n, s] for n, s in zip(self.dims, self.data.shape)], "data": flat}


def vector(op, attrs, inputs, outputs, note):
    VECTORS.append({"op": op, "attrs": attrs, "inputs": [t.json() for t in inputs],
                    "outputs": [t.json() for t in outputs], "note": note})


class Draw:
    """Seeded values of at most three decimals. Each vector has its own seed, so a new one leaves the others as they are."""

    def __init__(self, op, index):
        self.rng = np.random.default_rng([zlib.crc32(op.encode()), index])

    def f(self, *shape, lo=-2.0, hi=2.0):
        return np.round(self.rng.uniform(lo, hi, shape), 3)

    def i(self, *shape, below):
        return self.rng.integers(0, below, shape).astype(np.int32)


def close(a, b, tol=1e-12):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert np.all(np.abs(a - b) <= tol * (1.0 + np.abs(b))), np.max(np.abs(a - b))


# ------------------------------------------------------------------------------------------------ einsum
def einsum(spec, *operands):
    """The definition: for every value of every index, multiply and add."""
    lhs, rhs = spec.split("->")
    ins, out = [p.split() for p in lhs.split(",")], rhs.split()
    size = {}
    for names, a in zip(ins, operands):
        for n, s in zip(names, a.shape):
            assert size.setdefault(n, s) == s
    summed = [n for n in size if n not in out]
    res = np.zeros([size[n] for n in out])
    for at in itertools.product(*(range(size[n]) for n in out)):
        terms = []
        for over in itertools.product(*(range(size[n]) for n in summed)):
            where = dict(zip(out + summed, at + over))
            p = 1.0
            for names, a in zip(ins, operands):
                p *= a[tuple(where[n] for n in names)]
            terms.append(p)
        res[at] = math.fsum(terms)
    return res


def make_einsum():
    cases = [
        ("b s d, e d -> b s e", "Linear weight [out, in]"),
        ("b s d, g r e d -> b s g r e", "grouped query projection"),
        ("b s g r e, d g r e -> b s d", "three contracted dims"),
        ("b s g r e, b t g e -> b g r s t", "attention scores: b and g are batch dims, output reordered"),
        ("b m k, b k n -> b m n", "batched matrix product"),
        ("b s e, b s d -> d e", "weight gradient: contraction over the leading dims, output transposed"),
        ("m, n -> n m", "outer product"),
        ("b s, b s ->", "contraction to a scalar"),
        ("b s d -> s", "one operand, summed"),
        ("b s d -> d s b", "one operand, transposed"),
        ("b s d, b -> b s d", "no contraction: a broadcast product"),
        ("bat seq emb, out emb -> bat seq out", "names of several letters"),
    ]
    sizes = dict(b=2, s=3, d=5, e=4, g=2, r=3, t=4, m=3, n=4, k=5, bat=2, seq=3, emb=5, out=2)
    for i, (spec, note) in enumerate(cases):
        d = Draw("einsum", i)
        ins = [p.split() for p in spec.split("->")[0].split(",")]
        x = [d.f(*(sizes[n] for n in names)) for names in ins]
        y = einsum(spec, *x)
        letters = {n: chr(97 + j) for j, n in enumerate(sizes)}
        short = ",".join("".join(letters[n] for n in names) for names in ins)
        out = spec.split("->")[1].split()
        close(y, np.einsum(short + "->" + "".join(letters[n] for n in out), *x))
        vector("einsum", {"spec": spec}, [T(" ".join(n), a) for n, a in zip(ins, x)], [T(" ".join(out), y)], note)


# ------------------------------------------------------------------------------------------------ pointwise
def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def make_pointwise():
    any_ = dict(lo=-3.0, hi=3.0)
    pos = dict(lo=0.05, hi=5.0)
    unary = {
        "neg": (lambda x: -x, any_, [0.5, -7.25, 1e6]),
        "exp": (np.exp, any_, [0.0, -30.0, 20.0]),
        "log": (np.log, pos, [1.0, 1e-12, 1e12]),
        "sqrt": (np.sqrt, pos, [0.0, 4.0, 1e-12]),
        "rsqrt": (lambda x: 1.0 / np.sqrt(x), pos, [4.0, 1e-6, 1e6]),
        "reciprocal": (lambda x: 1.0 / x, pos, [-0.25, 1e-6, -1e6]),
        "sin": (np.sin, any_, [0.0, 10.0, -100.0]),
        "cos": (np.cos, any_, [0.0, 10.0, -100.0]),
        "tanh": (np.tanh, any_, [0.0, 20.0, -20.0]),
        "sigmoid": (sigmoid, any_, [0.0, 40.0, -40.0]),
        "silu": (lambda x: x * sigmoid(x), any_, [0.0, 40.0, -40.0]),
        "gelu_tanh": (gelu_tanh, any_, [0.0, 10.0, -4.0]),
        "relu": (lambda x: np.where(x > 0, x, 0.0), any_, [0.0, 1e6, -1e6]),
        "relu2": (lambda x: np.where(x > 0, x * x, 0.0), any_, [0.0, 1e3, -1e3]),
        "abs": (np.abs, any_, [0.0, -1.5, 2.5]),
    }
    for op, (f, dom, special) in unary.items():
        for i, (dims, shape) in enumerate([("b s d", (2, 3, 5)), ("n", (7,))]):
            x = Draw(op, i).f(*shape, **dom)
            vector(op, {}, [T(dims, x)], [T(dims, f(x))], "seeded values")
        x = np.array(special)
        vector(op, {}, [T("n", x)], [T("n", f(x))], "ends of the range")

    binary = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
              "pow": np.power, "less": lambda a, b: (a < b).astype(float), "equal": lambda a, b: (a == b).astype(float)}
    for op, f in binary.items():
        for i, (dims, shape) in enumerate([("b s d", (2, 3, 5)), ("n", (7,)), ("", ())]):
            d = Draw(op, i)
            a = d.f(*shape, **(pos if op == "pow" else any_))
            b = d.f(*shape, **(pos if op == "div" else any_))
            note = "seeded values"
            if i == 1 and op in ("less", "equal", "max", "min"):
                b[::2] = a[::2]
                note = "every other pair is equal"
            if i == 1 and op == "pow":
                a, b = np.array([-1.5, -2.0, 0.0, 0.0, 2.0, 9.0, 10.0]), np.array([2.0, 3.0, 0.0, 2.0, -1.0, 0.5, -3.0])
                note = "negative and zero bases, whole exponents"
            vector(op, {}, [T(dims, a), T(dims, b)], [T(dims, np.asarray(f(a, b)))], note if i < 2 else "scalars")

    for i, (dims, shape, mul, add) in enumerate([("b s d", (2, 3, 5), -1.75, 0.3), ("n", (7,), 0.125, 0.0), ("", (), 1.0, -1.0)]):
        x = Draw("affine", i).f(*shape)
        vector("affine", {"mul": mul, "add": add}, [T(dims, x)], [T(dims, np.asarray(x * mul + add))], "x*mul + add")
    for i, (dims, shape) in enumerate([("b s d", (2, 3, 5)), ("n", (7,))]):
        d = Draw("select", i)
        c, a, b = d.i(*shape, below=2).astype(float), d.f(*shape), d.f(*shape)
        vector("select", {}, [T(dims, c), T(dims, a), T(dims, b)], [T(dims, np.where(c != 0.0, a, b))], "1.0 takes the first, 0.0 the second")

    x = np.array([0.1, -1.0 / 3.0, 1.0 + 2.0**-24, 1.0 + 3 * 2.0**-24, 1.0 + 2.0**-24 + 2.0**-50, 16777217.0, 16777219.0, 3.4e38, 1e-40, 1e-45,
                  7e-46, -1e-50, 0.0])
    vector("cast", {"to": "f32"}, [T("n", x)], [T("n", x.astype(np.float32), "f32")],
           "f64 to f32, round to nearest, ties to even; subnormals kept, below half the least one becomes zero")
    x = Draw("cast", 1).f(2, 3, 5)
    vector("cast", {"to": "f32"}, [T("b s d", x)], [T("b s d", x.astype(np.float32), "f32")], "seeded values")


# ------------------------------------------------------------------------------------------------ shapes and reductions
SIZES = dict(b=2, s=3, d=5, g=2, r=3, bat=2, seq=4, emb=3)


def make_shapes():
    for op, f in (("reduce_sum", lambda v: math.fsum(v)), ("reduce_max", max)):
        for i, spec in enumerate(["b s d -> b s", "b s d -> d", "b s d -> b d", "b s ->", "bat seq emb -> seq"]):
            names, out = (p.split() for p in spec.split("->"))
            x = Draw(op, i).f(*(SIZES[n] for n in names))
            y = np.zeros([SIZES[n] for n in out])
            for at in np.ndindex(*y.shape):
                where = dict(zip(out, at))
                y[at] = f(x[tuple(where.get(n, slice(None)) for n in names)].reshape(-1).tolist())
            close(y, {"reduce_sum": np.sum, "reduce_max": np.max}[op](x, axis=tuple(k for k, n in enumerate(names) if n not in out)))
            vector(op, {"spec": spec}, [T(" ".join(names), x)], [T(" ".join(out), y)], "dims missing on the right are reduced")
    x = -Draw("reduce_max", 9).f(2, 3, lo=1.0, hi=4.0)
    vector("reduce_max", {"spec": "b s -> b"}, [T("b s", x)], [T("b", x.max(1))], "all negative: the neutral element is not zero")

    for i, spec in enumerate(["d -> b s d", "b d -> b s d", "b s -> d b s", "-> b s"]):
        names, out = (p.split() for p in spec.split("->"))
        x = np.asarray(Draw("broadcast", i).f(*(SIZES[n] for n in names)))
        y = np.zeros([SIZES[n] for n in out])
        for at in np.ndindex(*y.shape):
            y[at] = x[tuple(dict(zip(out, at))[n] for n in names)]
        vector("broadcast", {"spec": spec, "sizes": [SIZES[n] for n in out if n not in names]}, [T(" ".join(names), x)], [T(" ".join(out), y)],
               "sizes: of the new dims, in their order on the right")

    for i, spec in enumerate(["b s d -> d b s", "b s d -> b d s", "b s g r -> g b r s"]):
        names, out = (p.split() for p in spec.split("->"))
        x = Draw("transpose", i).f(*(SIZES[n] for n in names))
        y = np.zeros([SIZES[n] for n in out])
        for at in np.ndindex(*y.shape):
            y[at] = x[tuple(dict(zip(out, at))[n] for n in names)]
        vector("transpose", {"spec": spec}, [T(" ".join(names), x)], [T(" ".join(out), y)], "output dim k is the input dim of that name")

    def joined(side):
        return side.replace("(", " ( ").replace(")", " ) ").split()

    for i, spec in enumerate(["b (g r) -> b g r", "b g r -> b (g r)", "(b s) d -> b s d", "b s d -> (b s) d", "(b s) (g r) -> b s g r"]):
        shapes, sizes = [], []
        for which, side in enumerate(spec.split("->")):
            names, dims, group = [], [], None
            for w in joined(side):
                if w == "(":
                    group = []
                elif w == ")":
                    names.append("".join(group)); dims.append(math.prod(SIZES[n] for n in group))
                    if which == 0:
                        sizes += [SIZES[n] for n in group]
                    group = None
                elif group is not None:
                    group.append(w)
                else:
                    names.append(w); dims.append(SIZES[w])
            shapes.append((" ".join(names), dims))
        x = Draw("reshape", i).f(*shapes[0][1])
        vector("reshape", {"spec": spec, "sizes": sizes}, [T(shapes[0][0], x)], [T(shapes[1][0], x.reshape(shapes[1][1]))],
               "the first name in a parenthesis is the slow one; a merged dim is named by joining")

    for i, (dim, start, size) in enumerate([("s", 1, 2), ("d", 0, 3), ("b", 1, 1)]):
        x = Draw("slice", i).f(2, 3, 5)
        y = np.take(x, range(start, start + size), axis="bsd".index(dim))
        vector("slice", {"dim": dim, "start": start, "size": size}, [T("b s d", x)], [T("b s d", y)], "elements start .. start+size of one dim")
    for i, (dim, parts) in enumerate([("d", (2, 3)), ("s", (1, 2, 1)), ("b", (2, 1))]):
        d = Draw("concat", i)
        xs = [d.f(*(p if n == dim else SIZES[n] for n in "bsd")) for p in parts]
        y = np.zeros([sum(parts) if n == dim else SIZES[n] for n in "bsd"])
        at = 0
        for x, p in zip(xs, parts):
            y[tuple(slice(at, at + p) if n == dim else slice(None) for n in "bsd")] = x
            at += p
        vector("concat", {"dim": dim}, [T("b s d", x) for x in xs], [T("b s d", y)], f"{len(parts)} operands, in order")
    for i, (dim, before, after, value) in enumerate([("s", 1, 2, 0.0), ("d", 2, 0, -1.5), ("b", 0, 1, 0.25)]):
        x = Draw("pad", i).f(2, 3, 5)
        width = [(before, after) if n == dim else (0, 0) for n in "bsd"]
        vector("pad", {"dim": dim, "before": before, "after": after, "value": value}, [T("b s d", x)],
               [T("b s d", np.pad(x, width, constant_values=value))], "value before and after one dim")

    for i, (v, d_, b, s) in enumerate([(7, 5, 2, 3), (3, 2, 1, 9), (11, 3, 3, 2)]):
        d = Draw("gather", i)
        table, ids = d.f(v, d_), d.i(b, s, below=v)
        y = np.zeros((b, s, d_))
        for at in np.ndindex(b, s):
            y[at] = table[ids[at]]
        vector("gather", {}, [T("v d", table), T("b s", ids)], [T("b s d", y)], "rows of the table")
        d = Draw("scatter_add", i)
        dy, ids = d.f(b, s, d_), d.i(b, s, below=v)
        if i != 1:
            ids[0, :2] = v - 1
        y = np.zeros((v, d_))
        for at in np.ndindex(b, s):
            y[ids[at]] += dy[at]
        assert len(set(ids.reshape(-1).tolist())) < ids.size
        vector("scatter_add", {"rows": v}, [T("b s d", dy), T("b s", ids)], [T("v d", y)], "ids repeat; rows that no id names are zero")


# ------------------------------------------------------------------------------------------------ routing
def np_slots(choice, experts, capacity):
    """Slots in the order of the choices; a full expert takes no more."""
    queues = [[] for _ in range(experts)]
    out = np.full(choice.size, -1, np.int32)
    for i, e in enumerate(choice.reshape(-1)):
        if len(queues[e]) < capacity:
            out[i] = e * capacity + len(queues[e])
            queues[e].append(i)
    return out.reshape(choice.shape)


def make_routing():
    cases = [("b s", (2, 3), 5, 2, 3, 4), ("t", (7,), 4, 3, 9, 2), ("b s", (3, 4), 8, 1, 2, 3)]
    for i, (names, lead, n, k, cap, width) in enumerate(cases):
        d = Draw("top_k", i)
        x = d.f(*lead, n)
        if i == 2:
            x = np.round(x)  # ties
        choice = np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)
        best = np.asarray(jax.lax.top_k(jnp.asarray(x), k)[1])
        assert (choice == best).all()
        vector("top_k", {"k": k}, [T(names + " n", x)], [T(names + " k", choice)], "largest first" if i < 2 else "ties: the first")
        picked = np.zeros(lead + (k,))
        for at in np.ndindex(*picked.shape):
            picked[at] = x[at[:-1] + (choice[at],)]
        close(picked, jnp.take_along_axis(jnp.asarray(x), jnp.asarray(choice), -1))
        vector("take", {}, [T(names + " n", x), T(names + " k", choice)], [T(names + " k", picked)], "entries by index")
        slot = np_slots(choice, n, cap)
        size = {"experts": n, "capacity": cap}
        note = "all fit" if (slot >= 0).all() else "some are dropped"
        vector("slots", size, [T(names + " k", choice)], [T(names + " k", slot)], note)

        rows, w = Draw("dispatch", i).f(*lead, width), Draw("combine", i).f(*lead, k)
        for weighted in (False, True):
            y = np.zeros((n, cap, width))
            for at in np.ndindex(*slot.shape):
                if slot[at] >= 0:
                    y[slot[at] // cap, slot[at] % cap] += rows[at[:-1]] * (w[at] if weighted else 1.0)
            ins = [T(names + " d", rows), T(names + " k", slot)] + ([T(names + " k", w)] if weighted else [])
            vector("dispatch", size, ins, [T("E c d", y)], ("weighted, " if weighted else "") + note)
        table = Draw("combine.y", i).f(n, cap, width)
        z = np.zeros(lead + (width,))
        for at in np.ndindex(*slot.shape):
            if slot[at] >= 0:
                z[at[:-1]] += w[at] * table[slot[at] // cap, slot[at] % cap]
        hot = jax.nn.one_hot(jnp.asarray(slot), n * cap, dtype=jnp.float64)  # a row of zeros for -1
        close(z, jnp.einsum("...kr,...k,rd->...d", hot, jnp.asarray(w), jnp.asarray(table.reshape(n * cap, width))))
        vector("combine", {}, [T("E c d", table), T(names + " k", slot), T(names + " k", w)], [T(names + " d", z)], note)


# ------------------------------------------------------------------------------------------------ composites: numpy, in loops
def np_softmax(x):
    y = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:-1]):
        e = np.exp(x[at] - x[at].max())
        y[at] = e / math.fsum(e)
    return y


def np_rmsnorm(x, w, eps):
    y = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:-1]):
        y[at] = x[at] / math.sqrt(math.fsum(x[at] ** 2) / x.shape[-1] + eps) * w
    return y


def np_layernorm(x, w, b, eps):
    y = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:-1]):
        c = x[at] - math.fsum(x[at]) / x.shape[-1]
        y[at] = c / math.sqrt(math.fsum(c**2) / x.shape[-1] + eps) * w + b
    return y


def np_rope(x, cos, sin):
    y, half = np.zeros_like(x), x.shape[-1] // 2
    for at in np.ndindex(*x.shape[:-1]):
        s = at[1]
        for i in range(half):
            a, b = x[at][i], x[at][i + half]
            y[at][i] = a * cos[s, i] - b * sin[s, i]
            y[at][i + half] = b * cos[s, i] + a * sin[s, i]
    return y


def np_attention(q, k, v, scale, causal, window):
    (B, S, G, R, _), t, h = q.shape, k.shape[1], v.shape[3]
    o, lse = np.zeros((B, S, G, R, h)), np.zeros((B, S, G, R))
    for b, i, g, r in np.ndindex(B, S, G, R):
        seen = [j for j in range(t) if (not causal or j <= i) and (not window or (j <= i and i - j < window))]
        sc = np.array([scale * math.fsum(q[b, i, g, r] * k[b, j, g]) for j in seen])
        top = sc.max()
        z = math.fsum(np.exp(sc - top))
        lse[b, i, g, r] = top + math.log(z)
        o[b, i, g, r] = sum(np.exp(x - top) / z * v[b, j, g] for x, j in zip(sc, seen))
    return o, lse


def np_cross_entropy(x, labels):
    loss, lse = np.zeros(labels.shape), np.zeros(labels.shape)
    for at in np.ndindex(*labels.shape):
        lse[at] = x[at].max() + math.log(math.fsum(np.exp(x[at] - x[at].max())))
        loss[at] = lse[at] - x[at][labels[at]]
    return loss, lse


# ------------------------------------------------------------------------------------------------ composites: JAX, for gradients
def j_rmsnorm(x, w, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w


def j_layernorm(x, w, b, eps):
    return (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + eps) * w + b


def j_rope(x, cos, sin):
    shape = (1, cos.shape[0]) + (1,) * (x.ndim - 3) + (cos.shape[1],)
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def j_attention(q, k, v, scale, causal, window):
    sc = jnp.einsum("bsgre,btge->bsgrt", q, k) * scale
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None, :]
    seen = jnp.ones((q.shape[1], k.shape[1]), bool)
    if causal or window:
        seen &= j <= i
    if window:
        seen &= i - j < window
    sc = jnp.where(seen[None, :, None, None, :], sc, -jnp.inf)
    return jnp.einsum("bsgrt,btgh->bsgrh", jax.nn.softmax(sc, -1), v), jax.nn.logsumexp(sc, -1)


def j_cross_entropy(x, labels):
    lse = jax.nn.logsumexp(x, -1)
    return lse - jnp.take_along_axis(x, labels[..., None], -1)[..., 0], lse


def vjp(f, args, dy):
    return [np.asarray(g) for g in jax.vjp(f, *map(jnp.asarray, args))[1](jnp.asarray(dy))]


def make_composites():
    for i, (dims, shape, f) in enumerate([("b s n", (2, 3, 5), lambda x: x), ("b n", (3, 7), lambda x: x * 400.0), ("n", (1,), lambda x: x)]):
        x = f(Draw("softmax", i).f(*shape))
        y = np_softmax(x)
        close(y, jax.nn.softmax(jnp.asarray(x), -1))
        vector("softmax", {}, [T(dims, x)], [T(dims, y)], ["over the last dim", "large values: exp of them overflows", "one element"][i])
    for i, (dims, shape) in enumerate([("b s n", (2, 3, 5)), ("b n", (3, 7)), ("n", (1,))]):
        d = Draw("softmax_bwd", i)
        x, dy = d.f(*shape), d.f(*shape)
        (dx,) = vjp(lambda x: jax.nn.softmax(x, -1), [x], dy)
        vector("softmax_bwd", {}, [T(dims, np_softmax(x)), T(dims, dy)], [T(dims, dx)], "from the softmax's result y")

    for i, (dims, shape, eps) in enumerate([("b s d", (2, 3, 5), 1e-5), ("b s d", (1, 2, 7), 1e-6), ("b s g r e", (1, 3, 2, 2, 3), 0.5)]):
        d = Draw("norm", i)
        n = dims.split()[-1]
        x, w, b, dy = d.f(*shape), d.f(shape[-1], lo=0.5, hi=1.5), d.f(shape[-1]), d.f(*shape)
        if i == 1:
            x = np.round(x / 1000.0, 6)  # eps matters
        note = ["over the last dim", "small values: eps counts", "per head, a large eps"][i]
        y = np_rmsnorm(x, w, eps)
        close(y, j_rmsnorm(x, w, eps))
        vector("rmsnorm", {"eps": eps}, [T(dims, x), T(n, w)], [T(dims, y)], note)
        dx, dw = vjp(lambda x, w: j_rmsnorm(x, w, eps), [x, w], dy)
        vector("rmsnorm_bwd", {"eps": eps}, [T(dims, x), T(n, w), T(dims, dy)], [T(dims, dx), T(n, dw)], note)
        y = np_layernorm(x, w, b, eps)
        close(y, j_layernorm(x, w, b, eps))
        vector("layernorm", {"eps": eps}, [T(dims, x), T(n, w), T(n, b)], [T(dims, y)], note + "; biased variance")
        dx, dw, db = vjp(lambda x, w, b: j_layernorm(x, w, b, eps), [x, w, b], dy)
        vector("layernorm_bwd", {"eps": eps}, [T(dims, x), T(n, w), T(dims, dy)], [T(dims, dx), T(n, dw), T(n, db)], note + "; biased variance")

    for i, (theta, e, size, mult) in enumerate([(1e4, 6, 5, 1.0), (1e4, 16, 3, 1.0), (5e5, 8, 4, 1.1386294361119891)]):
        inv = (1.0 / theta ** (np.arange(0, e, 2) / e)).astype(np.float32)
        angle = (np.arange(size).astype(np.float32)[:, None] * inv[None, :])
        assert angle.dtype == np.float32
        angle = angle.astype(np.float64)
        vector("rope_table", {"inv_freq": [x.item() for x in inv], "multiplier": mult, "size": size}, [],
               [T("s h", np.cos(angle) * mult), T("s h", np.sin(angle) * mult)],
               "angle: f32(pos)*f32(inv_freq), one f32 rounding; cos, sin in f64, then times multiplier")
    inv, size = np.array([0.3162277638912201, 0.1], np.float32), 61
    angle = (np.arange(size).astype(np.float32)[:, None] * inv[None, :]).astype(np.float64)
    exact = np.arange(size)[:, None] * inv.astype(np.float64)
    assert np.max(np.abs(np.sin(angle) - np.sin(exact))) > 1e-7
    vector("rope_table", {"inv_freq": [x.item() for x in inv], "multiplier": 1.0, "size": size}, [],
           [T("s h", np.cos(angle)), T("s h", np.sin(angle))], "far positions: without the angle's f32 rounding these are off by more than 1e-7")

    for i, (dims, shape) in enumerate([("b s g r e", (2, 3, 2, 2, 6)), ("b s g e", (1, 5, 2, 4)), ("b s e", (2, 3, 2))]):
        d = Draw("rope", i)
        x, dy = d.f(*shape), d.f(*shape)
        half = shape[-1] // 2
        inv = (1.0 / 100.0 ** (np.arange(half) / half)).astype(np.float32)
        angle = (np.arange(shape[1]).astype(np.float32)[:, None] * inv[None, :]).astype(np.float64)
        cos, sin = np.cos(angle), np.sin(angle)
        if i == 1:
            cos, sin = d.f(shape[1], half), d.f(shape[1], half)
        note = "rotate_half: element i with element i + e/2" + ("; any table, not only a rotation's" if i == 1 else "")
        y = np_rope(x, cos, sin)
        close(y, j_rope(jnp.asarray(x), jnp.asarray(cos), jnp.asarray(sin)))
        vector("rope", {}, [T(dims, x), T("s h", cos), T("s h", sin)], [T(dims, y)], note)
        (dx,) = vjp(lambda x: j_rope(x, jnp.asarray(cos), jnp.asarray(sin)), [x], dy)
        vector("rope_bwd", {}, [T(dims, dy), T("s h", cos), T("s h", sin)], [T(dims, dx)], note)

    for i, (B, S, G, R, E, t, h, scale, causal, window) in enumerate([
            (2, 3, 2, 2, 3, 3, 2, 0.5, 1, 0), (1, 5, 1, 3, 3, 5, 4, 3**-0.5, 1, 2), (1, 2, 2, 1, 5, 4, 3, 0.3, 0, 0)]):
        d = Draw("attention", i)
        q, k, v, do = d.f(B, S, G, R, E), d.f(B, t, G, E), d.f(B, t, G, h), d.f(B, S, G, R, h)
        if i == 0:
            q = q * 8.0
        at = {"scale": scale, "causal": causal, "window": window}
        o, lse = np_attention(q, k, v, scale, causal, window)
        jo, jl = j_attention(*map(jnp.asarray, (q, k, v)), scale, causal, window)
        close(o, jo), close(lse, jl)
        ins = [T("b s g r e", q), T("b t g e", k), T("b t g h", v)]
        outs = [T("b s g r h", o), T("b s g r", lse)]
        note = ["causal, two query heads a key head, sharp scores", "window 2: a query sees itself and the key before", "no mask, more keys than queries"][i]
        vector("attention", at, ins, outs, note)
        g = vjp(lambda q, k, v: j_attention(q, k, v, scale, causal, window)[0], [q, k, v], do)
        vector("attention_bwd", at, ins + outs + [T("b s g r h", do)], [T("b s g r e", g[0]), T("b t g e", g[1]), T("b t g h", g[2])],
               note + "; no gradient flows into lse")

    for i, (dims, shape, mul) in enumerate([("b s", (2, 3, 5), 1.0), ("b", (4, 7), 500.0), ("b s", (1, 5, 3), 1.0)]):
        d = Draw("cross_entropy", i)
        x, labels, dl = d.f(*shape) * mul, d.i(*shape[:-1], below=shape[-1]), d.f(*shape[:-1])
        if i == 0:
            labels[0, 0], labels[-1, -1] = 0, shape[-1] - 1
        loss, lse = np_cross_entropy(x, labels)
        jl, je = j_cross_entropy(jnp.asarray(x), jnp.asarray(labels))
        close(loss, jl), close(lse, je)
        note = "natural logarithm, no reduction" if mul == 1.0 else "large logits: exp of them overflows"
        vector("cross_entropy", {}, [T(dims + " v", x), T(dims, labels)], [T(dims, loss), T(dims, lse)], note)
        (dx,) = vjp(lambda x: j_cross_entropy(x, jnp.asarray(labels))[0], [x], dl)
        vector("cross_entropy_bwd", {}, [T(dims + " v", x), T(dims, labels), T(dims, lse), T(dims, dl)], [T(dims + " v", dx)],
               note + "; no gradient flows into lse")

    for i, (dims, shape) in enumerate([("b s f", (2, 3, 5)), ("f", (7,))]):
        d = Draw("swiglu", i)
        g, u, dy = d.f(*shape, lo=-4.0, hi=4.0), d.f(*shape), d.f(*shape)
        y = g * sigmoid(g) * u
        f = lambda g, u: jax.nn.silu(g) * u
        close(y, f(jnp.asarray(g), jnp.asarray(u)))
        vector("swiglu", {}, [T(dims, g), T(dims, u)], [T(dims, y)], "silu(gate)*up")
        dg, du = vjp(f, [g, u], dy)
        vector("swiglu_bwd", {}, [T(dims, g), T(dims, u), T(dims, dy)], [T(dims, dg), T(dims, du)], "silu(gate)*up")

    for i, (dims, shape, t, hp) in enumerate([
            ("d e", (3, 5), 1, (1e-3, 0.9, 0.95, 1e-8, 0.1)), ("d e", (3, 5), 7, (1e-3, 0.9, 0.95, 1e-8, 0.1)), ("n", (7,), 100, (0.02, 0.8, 0.999, 1e-3, 0.0))]):
        lr, b1, b2, eps, wd = hp
        d = Draw("adamw", i)
        p, g = d.f(*shape), d.f(*shape, lo=-0.5, hi=0.5)
        m, v = d.f(*shape, lo=-0.2, hi=0.2), d.f(*shape, lo=0.001, hi=0.2)
        if t == 1:
            m, v = np.zeros(shape), np.zeros(shape)
            g[0, 0] = 0.0
        m2, v2 = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        p2 = p * (1 - lr * wd) - lr / (1 - b1**t) * m2 / (np.sqrt(v2) / math.sqrt(1 - b2**t) + eps)
        vector("adamw", {"lr": lr, "beta1": b1, "beta2": b2, "eps": eps, "weight_decay": wd},
               [T(dims, p), T(dims, g), T(dims, m), T(dims, v), T("", np.float64(t))], [T(dims, p2), T(dims, m2), T(dims, v2)],
               f"decoupled decay, bias-corrected, eps outside the root; step {t}" + (", from zero moments, one zero gradient" if t == 1 else ""))


# ------------------------------------------------------------------------------------------------ random
M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def fnv1a64(b):
    h = 0xCBF29CE484222325
    for c in b:
        h = ((h ^ c) * 0x100000001B3) & M64
    return h


def mix(z):
    z &= M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def uniform(name, seed, i):
    key = mix(fnv1a64(name.encode()) + seed * GOLDEN)
    word = mix(key + (i + 1) * GOLDEN)
    return (2 * (word >> 40) + 1 - (1 << 24)) * 2.0**-24


def make_random():
    name = "model.embed_tokens.weight"
    assert [uniform(name, 0, i) for i in range(4)] == [-0.8377172350883484, -0.1451895833015442, -0.98968106508255, -0.6392844319343567]
    for name, seed, dims, sizes in [(name, 0, ["v", "d"], [3, 5]), ("model.layers.0.self_attn.q_proj.weight", 1, ["g", "r", "e", "d"], [2, 1, 3, 2]),
                                    ("a", 123456789, ["n"], [7])]:
        y = np.array([uniform(name, seed, i) for i in range(math.prod(sizes))]).reshape(sizes)
        vector("random_uniform", {"name": name, "seed": seed, "dims": dims, "sizes": sizes}, [], [T(" ".join(dims), y)],
               "element i, row-major, is r of word(name, seed, i): 24 bits in (-1, 1), exact in f32")


def main():
    make_einsum()
    make_pointwise()
    make_shapes()
    make_routing()
    make_composites()
    make_random()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.json")
    text = "[\n" + ",\n".join(json.dumps(v, separators=(",", ":"), allow_nan=False) for v in VECTORS) + "\n]\n"
    with open(path, "w") as f:
        f.write(text)
    ops = {}
    for v in VECTORS:
        ops[v["op"]] = ops.get(v["op"], 0) + 1
    print(f"{path}: {len(VECTORS)} vectors of {len(ops)} ops, {len(text)} bytes")
    print(" ".join(f"{k}:{n}" for k, n in ops.items()))


if __name__ == "__main__":
    main()
