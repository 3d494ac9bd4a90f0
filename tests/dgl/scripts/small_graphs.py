"""Graphs that the scripts train on: what a node is shows in its neighbours, hardly in its own features."""

import dgl
import torch


def communities(num_nodes=600, classes=4, degree=24, seed=0):
    """A graph whose edges mostly stay inside of a class; features ``feat`` that hint at it, and ``label``."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (num_nodes,), generator=draw)
    src = torch.randint(0, num_nodes, (num_nodes * degree,), generator=draw)
    dst = torch.randint(0, num_nodes, (num_nodes * degree,), generator=draw)
    kept = (label[src] == label[dst]) | (torch.rand(len(src), generator=draw) < 0.1)
    g = dgl.graph((src[kept], dst[kept]), num_nodes=num_nodes)
    g.ndata["label"] = label
    noise = torch.randn(num_nodes, 8, generator=draw)
    g.ndata["feat"] = noise + 1.5 * torch.nn.functional.one_hot(label, 8)
    return g


def both_directions(g):
    """The same graph with each edge a second time, reversed; and the id of each edge's other direction."""
    src, dst = g.edges()
    n = g.num_edges()
    out = dgl.graph((torch.cat([src, dst]), torch.cat([dst, src])), num_nodes=g.num_nodes())
    for name, value in g.ndata.items():
        out.ndata[name] = value
    return out, torch.cat([torch.arange(n) + n, torch.arange(n)])


def films(num_films=400, num_people=300, classes=3, seed=0):
    """Films, the people in them and their studios. Films have no features; a genre goes with people and studio."""
    draw = torch.Generator().manual_seed(seed)
    genre = torch.randint(0, classes, (num_films,), generator=draw)
    habit = torch.randint(0, classes, (num_people,), generator=draw)
    film = torch.arange(num_films).repeat_interleave(30)
    person = torch.randint(0, num_people, (len(film),), generator=draw)
    kept = (habit[person] == genre[film]) & (torch.rand(len(film), generator=draw) < 0.6)
    film, person = film[kept], person[kept]
    studio = genre * 5 + torch.randint(0, 5, (num_films,), generator=draw)
    all_films = torch.arange(num_films)
    g = dgl.heterograph(
        {
            ("person", "acts", "film"): (person, film),
            ("film", "stars", "person"): (film, person),
            ("studio", "makes", "film"): (studio, all_films),
            ("film", "by", "studio"): (all_films, studio),
        },
        num_nodes_dict={"film": num_films, "person": num_people, "studio": 5 * classes},
    )
    g.nodes["person"].data["feat"] = torch.randn(num_people, 6, generator=draw) + torch.nn.functional.one_hot(habit, 6)
    g.nodes["film"].data["label"] = genre
    g.nodes["film"].data["train_mask"] = torch.rand(num_films, generator=draw) < 0.5
    return g
