"""Small datasets in the files of an OnDiskDataset: communities whose members are mostly linked with each other."""

import numpy as np
import yaml

CLASSES, NODES, DEGREE = 4, 1200, 8


def save(folder, name, values):
    np.save(folder / f"{name}.npy", values)
    return {"format": "numpy", "in_memory": True, "path": f"{name}.npy"}


def community_edges(rng, of_src, of_dst, degree):
    """``degree`` edges to each node, four in five of them from its own community: ``[2, num_edges]``."""
    dst = np.repeat(np.arange(len(of_dst)), degree)
    own = rng.random(len(dst)) < 0.8
    members = [np.flatnonzero(of_src == c) for c in range(CLASSES)]
    near = np.array([rng.choice(members[c]) for c in of_dst[dst]])
    return np.stack([np.where(own, near, rng.integers(len(of_src), size=len(dst))), dst])


def noisy(rng, classes):
    """``[n, 8] float32``: too noisy to tell the class of one node by."""
    return (np.eye(8)[classes] + rng.normal(scale=1.5, size=(len(classes), 8))).astype(np.float32)


def split(folder, rng, title, name, seeds, labels=None, type_name=None):
    """Train, validation and test sets of a task."""
    sets, order = {}, rng.permutation(len(seeds))
    parts = {"train_set": order[:400], "validation_set": order[400:600], "test_set": order[600:]}
    for part, chosen in parts.items():
        data = [{"name": name, **save(folder, f"{title}_{part}_{name}", seeds[chosen])}]
        if labels is not None:
            data.append({"name": "labels", **save(folder, f"{title}_{part}_labels", labels[chosen])})
        sets[part] = [{"data": data} if type_name is None else {"type": type_name, "data": data}]
    return {"name": title, "num_classes": CLASSES, **sets}


def write(folder, content):
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"dataset_name": "communities", **content}))
    return folder


def homogeneous(folder, pair_name):
    """One node type; tasks: classes of nodes, and links."""
    rng = np.random.default_rng(0)
    classes = rng.integers(CLASSES, size=NODES)
    edges = community_edges(rng, classes, classes, DEGREE)
    feature = {"domain": "node", "name": "feat", **save(folder, "feat", noisy(rng, classes))}
    return write(
        folder,
        {
            "graph": {"nodes": [{"num": NODES}], "edges": [save(folder, "edges", edges)]},
            "feature_data": [feature],
            "tasks": [
                split(folder, rng, "node_classification", "seeds", np.arange(NODES), classes),
                split(folder, rng, "link_prediction", pair_name, edges.T[rng.permutation(NODES)]),
            ],
        },
    )


def heterogeneous(folder):
    """Papers, whose class is asked for, and authors; edges of three types."""
    rng = np.random.default_rng(0)
    classes = {"paper": rng.integers(CLASSES, size=NODES), "author": rng.integers(CLASSES, size=NODES // 2)}
    edges, features = [], []
    for src, relation, dst in (("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")):
        table = save(folder, relation, community_edges(rng, classes[src], classes[dst], 4))
        edges.append({"type": f"{src}:{relation}:{dst}", **table})
    for ntype, of_type in classes.items():
        features.append({"domain": "node", "type": ntype, "name": "feat", **save(folder, ntype, noisy(rng, of_type))})
    task = split(folder, rng, "node_classification", "seeds", np.arange(NODES), classes["paper"], "paper")
    nodes = [{"type": ntype, "num": len(of_type)} for ntype, of_type in classes.items()]
    return write(folder, {"graph": {"nodes": nodes, "edges": edges}, "feature_data": features, "tasks": [task]})
