"""Whether JAX still has what penstock takes from it beyond its promises: where this fails, JAX has changed."""

import forked
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from penstock.distribute.jax.interface import (
    COMBINING,
    REPLICA_NUMBER,
    applied,
    aval_of,
    axes_of,
    called_function,
    combines_all,
    flatten,
    inner_traces,
    placed_on_devices,
    stands_under,
)
from penstock.runtime.ports import free_port

CHANGED = f"JAX {jax.__version__} has changed what penstock.distribute.jax.interface takes from it: "


def equations(function):
    return jax.make_jaxpr(function, axis_env=[("replica", 2)])(1.0).jaxpr.eqns


@pytest.mark.slow
def test_the_store_of_processes_keeps_what_was_put_first(tmp_path) -> None:
    """In a process of its own, because JAX is connected once."""
    program = """
import sys
import jax
from penstock.distribute.jax.interface import ProcessesStore
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 1, 0)
store = ProcessesStore("meeting/")
before = store.get("name")
store.put("name", "first")
store.put("name", "second")
print(before, store.get("name"), store.add("count"), store.add("count"))
"""
    ran = forked.run("-c", program, str(free_port()), training=True)
    assert ran.stdout == "None first 1 2\n", CHANGED + "the store of jax.distributed: " + ran.stderr


@pytest.mark.slow
def test_collectives_are_reached_at_the_address_that_they_are_given() -> None:
    program = """
import sys
import jax
from penstock.distribute.jax.interface import coordinator_address, reach_collectives_at
address = f"localhost:{sys.argv[1]}"
jax.distributed.initialize(address, 1, 0)
assert coordinator_address() == address
reach_collectives_at("no-machine.invalid")
try:
    jax.devices()
except RuntimeError as error:
    print("gloo" in str(error))
reach_collectives_at("127.0.0.1")
print(len(jax.devices()))
"""
    ran = forked.run("-c", program, str(free_port()), training=True)
    assert ran.stdout == "True\n1\n", CHANGED + "how collectives are made: " + ran.stderr


@pytest.mark.parametrize("collective", [lax.psum, lax.pmax, lax.pmin])
def test_collectives_stand_in_a_trace_as_one_equation(collective) -> None:
    (equation,) = equations(lambda x: collective(x, "replica"))
    assert equation.primitive in COMBINING and combines_all(equation), CHANGED + collective.__name__
    assert axes_of(equation) == ("replica",), CHANGED + f"the axes of {collective.__name__}"


def test_a_mean_is_a_sum_that_is_divided_and_a_replica_knows_its_number() -> None:
    assert combines_all(equations(lambda x: lax.pmean(x, "replica"))[0]), CHANGED + "pmean"
    (equation,) = equations(lambda x: lax.axis_index("replica"))
    assert equation.primitive is REPLICA_NUMBER and axes_of(equation) == ("replica",), CHANGED + "axis_index"


def test_an_equation_knows_the_names_that_it_was_traced_under() -> None:
    def gathering(x):
        with jax.named_scope("a.name"):
            return jnp.sin(x)

    for function in (gathering, jax.grad(gathering)):
        assert stands_under("a.name", equations(function)[0]), CHANGED + "source_info.name_stack"
    (plain,) = equations(jnp.sin)
    assert not stands_under("a.name", plain)


def test_functions_loops_and_branches_show_what_is_inside() -> None:
    @jax.custom_vjp
    def custom(x):
        return jnp.sin(x)

    custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))
    for function in (jax.jit(jnp.sin), jax.checkpoint(jnp.sin), jax.nn.relu, custom):
        (equation,) = equations(function)
        assert called_function(equation) is not None, CHANGED + str(equation.primitive)
    loop = equations(lambda x: lax.fori_loop(0, 3, lambda _, y: lax.psum(y, "replica"), x))[-1]
    branch = equations(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x))[-1]
    assert inner_traces(loop) and inner_traces(branch), CHANGED + "loops and branches"
    assert called_function(loop) is called_function(branch) is None


def test_one_equation_of_a_trace_can_be_applied() -> None:
    trace = jax.make_jaxpr(lambda x: x * 2)(1.0).jaxpr
    (result,) = applied(trace, trace.eqns[0], {trace.invars[0]: jnp.float32(3)})
    assert float(result) == 6, CHANGED + "Jaxpr"
    assert flatten((1, {"a": 2}))[0] == [1, 2], CHANGED + "default_registry.flatten"


def test_an_array_is_made_of_its_parts_without_finding_out_what_is_known() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:1])
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    found = placed_on_devices(aval_of(rows.shape, rows.dtype, sharding), sharding, [rows], [jax.devices()[0]])
    usual = jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
    assert found.aval == usual.aval and found.sharding == usual.sharding, CHANGED + "arrays made of parts"
    assert found.tolist() == rows.tolist(), CHANGED + "arrays made of parts"
