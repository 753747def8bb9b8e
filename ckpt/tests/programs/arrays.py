# numpy, threads and file output. The files depend on every step.
import sys
import threading

import numpy

ROUNDS = 420
lock = threading.Lock()
total = numpy.zeros(4, dtype=numpy.int64)


def work(me):
    random = numpy.random.default_rng(me)
    state = random.standard_normal((90, 90))
    with open(f"thread{me}", "w") as log:
        for round in range(ROUNDS):
            state = numpy.tanh(state @ state.T / 90 + 0.1 * random.standard_normal((90, 90)))
            order = numpy.argsort(state, axis=None, kind="stable")
            with lock:
                total[me] += int(order[:100].sum()) + round
            log.write(f"{round} {int(order[7])} {float(state[3, 5]).hex()}\n")
            sum(i * i for i in range(20000))


threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
print("ready", flush=True)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
numpy.save("total", total)
print(total.tolist())
sys.exit(5)
