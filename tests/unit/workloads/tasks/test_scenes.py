"""Detection steps on the CPU: batches, training, compilation, real data and torchvision's detectors."""

import math

import pytest
import torch
from torch import nn

from pytest_accel.measure.arguments import StepError
from pytest_accel.workloads.data.sources import LoaderSource
from pytest_accel.workloads.demand import Demand
from pytest_accel.workloads.measured_step import Train
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import InferStep, TrainStep
from pytest_accel.workloads.tasks.detection import MANY_SCALES, ONE_SCALE
from tests.support.detection_sets import coco_annotations, write_coco
from tests.support.plans import made
from tests.support.plans import scene_plan as plan

DINO, RCNN = "zoo/dino-tiny", "fasterrcnn_mobilenet_v3_large_320_fpn"
STEP = {"data": "coco", "batch_size": 2, "image_size": 64}
# Fewer regions: a step is mostly made of their 1,024 units.
SMALL = {RCNN: {"model_options": {"box_batch_size_per_image": 16}, "clip": 1.0}, DINO: {"clip": 0.1}}


def train(model, **changes):
    return TrainStep.build(model, **STEP | SMALL[model] | changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_coco(root / "coco", coco_annotations(images=9))
    write_coco(root / "coco", coco_annotations(images=5), part="val2017")
    return root


def test_synthetic_batch_has_a_copy_of_its_targets():
    scenes, targets = made(plan(batch_size=4))
    assert scenes.sizes.tolist() == [[64, 64]] * 4
    for mine, its in zip(scenes.targets, targets, strict=True):
        assert torch.equal(mine, its)
        assert mine is not its


def test_synthetic_batches_have_the_largest_landscape_bucket():
    for model, resizing in ((DINO, MANY_SCALES), (RCNN, ONE_SCALE), ("own", ONE_SCALE)):
        found = plan(model, image_size=None)
        assert (found.resizing, found.bucket) == (resizing, (800, 1344))
    assert plan(image_size=96).described == {"bucket": "96x96", "labels": 80, "max_gt": 100}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", [DINO, RCNN])
def test_inference_returns_boxes_and_outputs_that_are_not_finite_are_an_error(model, precision):
    with InferStep.build(model, **STEP, precision=precision) as step:
        step()
        step()
        step.check()
        if model == RCNN:
            images, heads = step.output
            assert len(heads) == 2  # of the last step alone: what proposes, and what refines
            assert [sorted(found) for found in images] == [["boxes", "labels", "scores"]] * 2
        else:
            assert step.output.noise is None  # targets come along, and are not read
            assert step.output.boxes.shape == (3, 2, 30, 4)
        with torch.no_grad():
            for parameter in step.parts.model.parameters():
                parameter.fill_(math.nan)
        step()
        if model == RCNN:
            assert not any(found["boxes"].numel() for found in step.output[0])
        with pytest.raises(StepError, match="not finite"):
            step.check()


class Colours(nn.Module):
    """A detector of one's own: it returns its losses."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, scenes):
        boxes = self.layer(scenes.images.mean((2, 3)))
        return {"boxes": boxes.square().mean(), "bias": self.layer.bias.square().sum()}


class Graphs:
    """A compiler that counts what it is given, and changes nothing."""

    def __init__(self, monkeypatch):
        self.count = 0
        compile_ = torch.compile
        monkeypatch.setattr(
            torch,
            "compile",
            lambda function, *, options, dynamic: compile_(function, backend=self, dynamic=dynamic),
        )
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    def __call__(self, graph, _inputs):
        self.count += 1
        return graph

    @property
    def breaks(self):
        return list(torch._dynamo.utils.counters["graph_break"])


def test_compiled_step_of_dino_is_not_recompiled_for_other_boxes(monkeypatch):
    graphs = Graphs(monkeypatch)
    with train(DINO, compile="default", model_options={"scales": 2}, precision="bf16") as step:
        step()
        first, losses = graphs.count, {step.loss_value()}
        for _ in range(3):
            step()
            losses.add(step.loss_value())
        assert len(losses) == 4  # of different boxes
        with step.computing_only():
            step()
        step.check()
        assert step.configuration["compile_parts"] is True
    # A block of each of three stages, one layer of the encoder for both, the proposer, one of the decoder for both, the
    # costs, and, when the host has matched, the loss.
    assert graphs.count == first == 8
    assert all("match" in reason for reason in graphs.breaks)


def test_real_images_are_read_through_the_loader(root, opened):
    feed = opened(plan(), data_root=root, workers=1)
    assert isinstance(feed.source, LoaderSource)
    assert feed.configuration == {
        "data_source": "files",
        "data_images": 9,
        "augment": True,
        "short_sides": "64 to 64",
        "workers": 1,
        "prefetch": 2,
        "decode": "host",
        "input_shape": "3x64x64",
        "bucket": "64x64",
    }
    assert feed.order.steps_for_epochs(2) == 9
    boxes = 0
    for scenes, targets in (next(feed.source) for _ in range(9)):
        assert scenes.images.shape == (2, 3, 64, 64)
        assert scenes.sizes.amax(dim=1).tolist() == [64, 64]  # resized to fit
        outside = scenes.images[0, :, scenes.sizes[0, 0] :]
        assert not outside.any()
        boxes += int(targets.valid.sum())
    assert boxes == 2 * sum(range(9))  # of two epochs


def test_detectors_train_on_real_images(root):
    for model in (DINO, RCNN):
        with train(model, data_root=root, workers=0, data_required=True) as step:
            step()
            step()
            step.check()
            assert step.demand.flops > 1e6
            assert (step.work, step.unit) == (2, "images")
            expected = {"model": model, "data_source": "files", "data": "coco", "loss": "detection"}
            shapes = {"input_shape": "3x64x64", "bucket": "64x64", "labels": 80, "max_gt": 100}
            assert (expected | shapes).items() <= step.configuration.items()


def test_inference_reads_the_validation_images_at_the_largest_scale(root, opened):
    feed = opened(plan(image_size=None), task="infer", data_root=root, workers=0)
    assert feed.configuration["data_images"] == 5
    assert feed.configuration["short_sides"] == "800 to 800"
    assert "augment" not in feed.configuration


def in_several_shapes(root):
    """A step that computes next to nothing, on images in the shapes of COCO's."""
    return TrainStep.build(Colours, data="coco", batch_size=1, data_root=root, workers=0)


def test_images_of_several_shapes_have_no_operation_count_and_no_efficiency(root):
    """The plan's shape is the largest: its operations are too many for most batches."""
    with in_several_shapes(root) as step:
        assert step.configuration["bucket"] == "800x1088 800x1344 1088x800 1344x800"
        assert step.configuration["input_shape"].startswith("3x800x1088 3x800x1344 ")
        assert step.demand == Demand()
        with pytest.raises(StepError, match=r"min_loader_efficiency: coco .* differ in shape.*image_size="):
            Train(None)._measured(step, min_loader_efficiency=0.9)
    with train(DINO, data_root=root, workers=0) as step:
        assert step.demand.flops > 1e8  # they have one


def test_too_few_classes_for_real_labels_are_refused(root, opened):
    with pytest.raises(ValueError, match="num_classes: 2 do not fit the labels of coco"):
        opened(plan(labels=2), data_root=root)


@pytest.fixture(scope="module")
def rcnn():
    model, _ = build_model("fasterrcnn_resnet50_fpn", box_batch_size_per_image=16)
    return model


def test_label_zero_is_the_background_boxes_are_pixels_and_images_are_not_changed(rcnn):
    scenes, targets = made(plan(RCNN))
    scenes = scenes._replace(sizes=torch.tensor([[32, 64], [64, 48]]))
    seen = []
    handles = [
        part.register_forward_pre_hook(lambda _module, inputs: seen.extend(inputs))
        for part in (rcnn.detector, rcnn.detector.backbone)
    ]
    rcnn.train()
    rcnn(scenes)
    for handle in handles:
        handle.remove()
    lists, images = seen[1:]
    assert images is scenes.images  # neither resized nor normalized again
    assert rcnn.detector.transform.sizes == [(32, 64), (64, 48)]
    for image, found in enumerate(lists):
        real = targets.valid[image]
        assert torch.equal(found["labels"], targets.labels[image][real] + 1)
        height, width = rcnn.detector.transform.sizes[image]
        left, top, right, bottom = found["boxes"].unbind(-1)
        torch.testing.assert_close((left + right) / 2 / width, targets.boxes[image][real][:, 0])
        torch.testing.assert_close((bottom - top) / height, targets.boxes[image][real][:, 3])


@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_layers_are_the_librarys_and_coordinates_are_fp32_in_bf16(kind):
    options = {"model_options": SMALL[RCNN]["model_options"], "precision": "bf16"}
    with kind.build(RCNN, **STEP, **options) as step:
        detector, seen = step.parts.model.detector, {}
        ours = {type(part).__name__ for part in detector.modules() if "pytest_accel" in type(part).__module__}
        assert ours == {"NoTransform"}
        for name, part in (
            ("anchors", detector.rpn.anchor_generator),
            ("pool", detector.roi_heads.box_roi_pool),
        ):
            part.register_forward_hook(
                lambda _, inputs, output, name=name: seen.update({name: (inputs, output)})
            )
        step()
        anchors, (maps, boxes, _), pooled = seen["anchors"][1], *seen["pool"]
        assert {each.dtype for each in (*anchors, *boxes)} == {torch.float32}
        assert {each.dtype for each in (*maps.values(), pooled)} == {torch.bfloat16}
        step.check()
