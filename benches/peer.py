#!/usr/bin/env python3
"""Training steps beside PyTorch (torch.compile) and JAX on the CPU, as a table of ratios.

    cargo build --release
    python3 -m venv target/peer && target/peer/bin/pip install "jax[cpu]" torch transformers safetensors
    python3 benches/peer.py [--rounds 5] [--only mid] [--peers ../shared/peer]

Each row runs both programs alternately, so that both see the same machine, and compares tokens per second
(forward, backward, AdamW, f32; each run's median step, the first two steps left out): the median over
rounds of the peer's step time divided by ours. Above 1: autoshard is faster. On a shared machine only
ratios mean something. Memory is the peak resident set of each process; compile is ours, model to program.
"""
import argparse, json, os, statistics, subprocess

ROWS = [  # configuration, batch, sequence, mesh of autoshard, peer, its mesh, wanted ratio
    ("tiny", 8, 64, "dp=1", "jax", "", 1.0),
    ("small", 8, 256, "dp=1", "torch", "", 0.95),
    ("mid", 4, 512, "dp=1", "torch", "", 0.95),
    ("mid", 4, 512, "tp=4,dp=2", "jax", "tp4,dp2", 1.4),
    ("mid", 8, 512, "dp=8", "jax", "dp8", 1.4),
    ("mid", 8, 512, "fsdp=8", "jax", "fsdp8", 1.4),
]


def last_json(command):
    # OPENBLAS_CORETYPE slows a current numpy; neither program needs it.
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    lines = [json.loads(l) for l in out.strip().splitlines() if l.startswith("{")]
    result = lines[-1].get("summary", lines[-1])
    # Ours says its memory on every step.
    result.setdefault("peak_rss_mib", max((l.get("peak_memory_mib", 0) for l in lines), default=0))
    return result


def commands(args, row):
    name, batch, seq, mesh, peer, peer_mesh, _ = row
    config = f"tests/data/configs/peer_{name}.json"
    size = ["--batch", str(batch)]
    ours = ["target/release/autoshard", "run", config, "--mesh", mesh, "--seq-len", str(seq), "--data", "golden",
            "--steps", "9", "--json"] + size
    script = {"jax": "peer_jax.py", "torch": "peer_torch.py"}[peer]
    theirs = [args.python, f"{args.peers}/{script}", "--bench", "--config", config, "--seq", str(seq)] + size
    theirs += ["--json"] if peer == "jax" else ["--compile"]
    theirs += ["--mesh", peer_mesh] if peer_mesh else []
    return ours, theirs


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--peers", default="../shared/peer", help="folder with peer_jax.py and peer_torch.py")
    ap.add_argument("--python", default="target/peer/bin/python")
    ap.add_argument("--only", default="", help="rows whose configuration or mesh is this")
    args = ap.parse_args()
    print("| model | batch×seq | mesh | peer | autoshard, ms | peer, ms | tokens/s, ratio (rounds) | wanted "
          "| CPU time, ratio | memory, MiB: ours, peer | compile, s |\n|" + "---|" * 11)
    for row in ROWS:
        name, batch, seq, mesh, peer, _, wanted = row
        if args.only and args.only not in (name, mesh):
            continue
        ours, theirs = commands(args, row)
        a, b = [], []
        for i in range(args.rounds):
            for side, command in [(a, ours), (b, theirs)][:: 1 if i % 2 == 0 else -1]:
                side.append(last_json(command))
        med = lambda runs, key: statistics.median(r[key] for r in runs)
        ratios = lambda key: sorted(y[key] / x[key] for x, y in zip(a, b))
        steps, cpu = ratios("step_median_s"), ratios("cpu_median_s")
        print(f"| {name} | {batch}×{seq} | {mesh} | {'JAX' if peer == 'jax' else 'torch.compile'} "
              f"| {1e3 * med(a, 'step_median_s'):.1f} | {1e3 * med(b, 'step_median_s'):.1f} "
              f"| {statistics.median(steps):.2f} ({steps[0]:.2f}–{steps[-1]:.2f}) | ≥ {wanted} "
              f"| {statistics.median(cpu):.2f} | {med(a, 'peak_rss_mib'):.0f}, {med(b, 'peak_rss_mib'):.0f} "
              f"| {med(a, 'compile_seconds'):.2f} |", flush=True)


main()
