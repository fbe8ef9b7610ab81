"""Several machines, each a raylet here: some join late, one is lost with what it kept, and none takes its place."""

import time
import warnings

import pytest
from test_every_strategy import _inputs, _same

import labelwise as lw
from labelwise.errors import ClusterError
from labelwise.shards.ray.engine import Ray, RemoteShard
from tuned import tuned

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
STORE = 100 << 20


@pytest.fixture
def machines():
    """A cluster whose head has no room for workers."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of its own future defaults
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "_system_config": QUICK}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def _join_when_asked(number, machines, monkeypatch):
    """So many machines are added once somebody has asked for places; and those that were."""
    ask, joined = ray.util.placement_group, []

    def asking(*wanted, **settings):
        group = ask(*wanted, **settings)
        while len(joined) < number:
            joined.append(machines.add_node(num_cpus=1, object_store_memory=STORE, wait=False))
        return group

    monkeypatch.setattr(ray.util, "placement_group", asking)
    return joined


def _lose_at(moment, machines, joined, monkeypatch):
    """Take away the machine of the part whose function is begun at this moment; and the parts that were begun."""
    begun, begin = [], RemoteShard.begin

    def losing(self, fn):
        begun.append(self)
        if len(begun) == moment:
            asked = self._actor.__ray_call__.remote(lambda holder: ray.get_runtime_context().get_node_id())
            (lost,) = [one for one in joined if one.node_id == ray.get(asked)]
            joined.remove(lost)
            machines.remove_node(lost, allow_graceful=False)
        return begin(self, fn)

    monkeypatch.setattr(RemoteShard, "begin", losing)
    return begun


def _wait_until_free(cpus):
    until = time.monotonic() + 60
    while ray.available_resources().get("CPU") != cpus:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_machines_join_late_and_one_is_lost_with_its_state_and_then_another(machines, monkeypatch):
    inputs = _inputs(8000)
    expected = lw.select("sabal-greedy", 12, **inputs)
    with pytest.raises(ClusterError, match=r"2 workers of 1 CPUs.* the cluster has 0 CPUs, room for 0 such workers"):
        lw.select("sabal-greedy", 12, **inputs, engine=Ray(workers=2, wait=1))
    with monkeypatch.context() as patch:
        joined = _join_when_asked(3, machines, patch)
        begun = _lose_at(31, machines, joined, patch)
        got = lw.select("sabal-greedy", 12, **inputs, engine=tuned(Ray(workers=2, losses=5), every=5, local=0))
    assert sum(shard._losses for shard in set(begun)) >= 1
    _same(got, expected)

    _wait_until_free(2)  # of the workers that are just gone
    _lose_at(31, machines, joined, monkeypatch)
    with pytest.raises(ClusterError, match="lost with its machine, and 2 workers of 1 CPUs found no place within 3 "):
        lw.select("sabal-greedy", 12, **inputs, engine=tuned(Ray(workers=2, wait=3), every=5, local=0))
