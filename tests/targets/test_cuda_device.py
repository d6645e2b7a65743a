"""On an NVIDIA GPU: random programs under random schedules, and ONNX's node cases, as on OpenCL."""

from __future__ import annotations

import pytest

import weft
from tests.codegen.c_support import cuda
from tests.conftest import FULL
from tests.schedule.checking import assert_same
from tests.schedule.intrinsics import declare_intrinsics
from tests.targets.test_opencl_operators import check_portion, wanted_cases
from tests.targets.test_opencl_random import check_seeds
from weft.targets.cuda.device import address_of

PORTIONS = 48


def test_random_schedules_compute_the_same():
    def check(func, arrays, want):
        copies = [a.copy() for a in arrays]
        weft.build(func, target=target)(*copies)
        assert_same(copies, want, f"on CUDA\n{func!r}")

    target = cuda()
    declare_intrinsics()
    count = 2000 if FULL else 100
    check_seeds(range(10_000, 10_000 + count), check, count // 2)


@pytest.mark.parametrize("number", range(PORTIONS))
def test_cases_on_cuda(number):
    target = cuda()
    check_portion(wanted_cases()[number::PORTIONS], target)


def test_memory_of_a_type_that_the_protocol_cannot_name_has_an_address():
    class Float8:
        @property
        def __cuda_array_interface__(self):
            raise KeyError("torch.float8_e4m3fn")

        def data_ptr(self):
            return 4096

    assert address_of(Float8()) == 4096
