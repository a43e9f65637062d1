"""The tutorial's training in TensorFlow: for each line of the input an epoch, of which it prints the seconds.

`benchmarks.training` starts it with an interpreter that has TensorFlow, where penstock is not.
"""

import sys
import time

import keras
import tensorflow as tf

from benchmarks.tutorial import NETWORKS, ROWS_PER_REPLICA, images


def main(network: str, replicas: int, examples: int) -> None:
    """Train on this many virtual devices of the CPU."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    dataset = tf.data.Dataset.from_tensor_slices(images(examples)).shuffle(examples).batch(ROWS_PER_REPLICA * replicas)
    steps = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        model = NETWORKS[network]()
        optimizer = keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(inputs):
        rows, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(rows, training=True)
            loss = tf.nn.compute_average_loss(loss_object(labels, predictions))
            if model.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, predictions)
        return loss

    @tf.function
    def distributed_train_step(inputs):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(inputs,)), axis=None)

    for _ in sys.stdin:
        started = time.perf_counter()
        total = sum(distributed_train_step(inputs) for inputs in steps)
        float(total), float(accuracy.result())
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
