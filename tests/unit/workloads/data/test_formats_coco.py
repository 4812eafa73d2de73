"""COCO's annotations: what is right is read exactly, what can be mended is counted, all else is one error with its place."""

from __future__ import annotations

import copy
import json
import pickle
import pickletools
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_accel.workloads.data.errors import BoxesChangedWarning, DataError, DataMissing
from pytest_accel.workloads.data.formats.coco import open_coco, read_coco
from tests.support.detection_sets import coco_annotations, write_coco


@pytest.fixture
def content():
    return coco_annotations()


def opened(root, content, **options):
    write_coco(root, content, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_coco(root, "train")


def refused(root):
    with pytest.raises(DataError) as caught:
        open_coco(root, "train")
    assert type(caught.value) is DataError
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value)


def test_boxes_come_with_their_images(tmp_path, content):
    found = opened(tmp_path, content)
    assert len(found) == 6
    assert found.sizes.tolist() == [[40, 60], [60, 40], [48, 48], [30, 90], [40, 60], [60, 40]]
    assert found.counts.tolist() == [0, 1, 2, 3, 4, 5]
    boxes, labels = found.objects(2)
    # The second and third annotation: left, top, width 5, heights 4.5 and 5.5; categories 1 and 90.
    assert boxes.tolist() == [[1.5, 2.25, 6.5, 6.75], [2.5, 2.25, 7.5, 7.75]]
    assert labels.tolist() == [0, 2]
    assert [len(part) for part in found.objects(0)] == [0, 0]
    assert (found.crowds, found.clipped, found.dropped) == (0, 0, 0)


def test_labels_follow_the_order_of_category_ids(tmp_path, content):
    found = opened(tmp_path, content)
    assert found.categories == ("person", "dog", "toothbrush")
    by_id = {1: 0, 18: 1, 90: 2}
    expected = [by_id[entry["category_id"]] for entry in content["annotations"]]
    assert found.labels.tolist() == expected


def test_images_come_in_the_order_of_their_ids_wherever_they_stand(tmp_path, content):
    straight = opened(tmp_path / "straight", copy.deepcopy(content))
    content["images"].reverse()
    content["annotations"] = content["annotations"][::2] + content["annotations"][1::2]
    turned = opened(tmp_path / "turned", content)
    assert [turned.names[index] for index in range(6)] == [straight.names[index] for index in range(6)]
    assert turned.counts.tolist() == straight.counts.tolist()
    assert sorted(turned.objects(5)[0].tolist()) == sorted(straight.objects(5)[0].tolist())


def test_the_bytes_of_an_image_are_those_of_its_file(tmp_path, content):
    found = opened(tmp_path, content)
    assert found.name(3) == str(tmp_path / "train2017/000000000003.jpg")
    assert found.read(3).tobytes() == (tmp_path / "train2017/000000000003.jpg").read_bytes()


def test_the_validation_images_are_the_test_split(tmp_path, content):
    write_coco(tmp_path / "coco", content, part="val2017")
    assert open_coco(tmp_path, "test").folder == str(tmp_path / "coco/val2017")
    path = tmp_path / "coco/annotations/instances_train2017.json"
    assert refused(tmp_path).startswith(f"{path}: missing")


def test_a_root_without_coco_is_told_where_was_looked(tmp_path):
    with pytest.raises(DataMissing, match=f"{tmp_path}/coco/annotations and {tmp_path}/annotations"):
        open_coco(tmp_path, "train")


def test_sizes_that_a_tool_wrote_as_fractions_are_read(tmp_path, content):
    content["images"][0] |= {"height": 40.0, "width": 60.0}
    assert opened(tmp_path, content).sizes[0].tolist() == [40, 60]


def test_a_set_without_any_box_is_a_set(tmp_path, content):
    content["annotations"] = []
    found = opened(tmp_path, content)
    assert (len(found), found.boxes.shape, found.counts.tolist()) == (6, (0, 4), [0] * 6)


def test_crowds_are_left_out_and_counted(tmp_path, content):
    content["annotations"][1]["iscrowd"] = 1
    content["annotations"][2]["iscrowd"] = 1
    content["annotations"][2]["bbox"] = [0, 0, -1, 0]  # of no matter: it is not used
    found = opened(tmp_path, content)
    assert found.crowds == 2
    assert found.counts.tolist() == [0, 1, 0, 3, 4, 5]
    assert found.dropped == 0


@pytest.mark.parametrize(
    ("box", "left"),  # of an image of 48 x 48
    [
        ([40, 2, 20, 5], [40, 2, 48, 7]),
        ([-4, -6, 10, 10], [0, 0, 6, 4]),
        ([-10, -10, 100, 100], [0, 0, 48, 48]),
        ([5, 5, 0, 4], None),
        ([5, 5, 4, 0], None),
        ([5, 5, -3, 4], None),
        ([60, 5, -30, 4], None),  # turned around it would lie inside
        ([48, 5, 4, 4], None),
        ([-4, 5, 4, 4], None),
        ([5, 400, 4, 4], None),
        ([5, 5, 1e-30, 4], None),
        ([30, 5, 1e-7, 4], None),  # a sliver that single precision closes
    ],
)
def test_boxes_are_clipped_or_left_out_with_one_warning(tmp_path, content, box, left):
    content["annotations"][1]["bbox"] = box
    content["annotations"][3]["bbox"] = box  # of an image of 30 x 90
    path = write_coco(tmp_path, content)
    with pytest.warns(BoxesChangedWarning) as caught:
        found = open_coco(tmp_path, "train")
    assert len(caught) == 1
    assert str(caught[0].message).startswith(f"{path}: {found.clipped} boxes stuck out")
    assert f"{found.dropped} were empty or outside" in str(caught[0].message)
    kept = found.objects(2)[0].tolist()
    untouched = [2.5, 2.25, 7.5, 7.75]
    assert kept == ([untouched] if left is None else [left, untouched])
    assert found.clipped + found.dropped >= 1
    assert found.counts.sum() == 15 - found.dropped
    assert found.labels.shape == (15 - found.dropped,)


def test_rounding_is_no_mistake(tmp_path, content):
    content["annotations"][0]["bbox"] = [30.004, 0, 10.001, 5]
    found = opened(tmp_path, content)  # of an image 40 wide; a warning would be an error
    assert found.objects(1)[0].tolist() == [[pytest.approx(30.004), 0, 40, 5]]
    assert found.clipped == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.floats(-200, 200, width=32), min_size=4, max_size=4), min_size=1, max_size=8))
@pytest.mark.filterwarnings("ignore::pytest_accel.workloads.data.errors.BoxesChangedWarning")
def test_boxes_stay_inside_their_images_and_are_not_empty(tmp_path, drawn):
    content = coco_annotations(images=2)
    content["annotations"] = [
        {"id": number, "image_id": 11, "category_id": 1, "bbox": box, "iscrowd": 0}
        for number, box in enumerate(drawn)
    ]
    write_coco(tmp_path, content)
    found = open_coco(tmp_path, "train")
    assert len(found.boxes) + found.dropped == len(drawn)
    left, top, right, bottom = found.boxes.T
    assert ((left >= 0) & (top >= 0) & (right <= 40) & (bottom <= 60)).all()
    assert ((right > left) & (bottom > top)).all()
    inside = [
        box
        for box in drawn
        if min(box) >= 0 and box[2] * box[3] and box[0] + box[2] <= 40 and box[1] + box[3] <= 60
    ]
    assert len(found.boxes) >= sum(1 for box in inside if min(box[2:]) > 1e-3)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1e12"])
def test_boxes_of_no_finite_numbers_are_refused_by_their_id(tmp_path, content, number):
    content["annotations"][4]["bbox"] = ["here", 2, 3, 4]
    path = write_coco(tmp_path, content)
    path.write_text(path.read_text().replace('"here"', number))
    text = refused(tmp_path)
    assert text.startswith(f"{path}: annotation 104: the box [")
    assert "finite" in text


def changed(part, place, **values):
    def change(content):
        for key, value in values.items():
            if value is None:
                del content[part][place][key]
            else:
                content[part][place][key] = value

    return change


def replaced(**values):
    return lambda content: content.update(values)


@pytest.mark.parametrize(
    ("change", "where", "problem"),
    [
        (lambda content: content.pop("images"), "", "has no list 'images'"),
        (lambda content: content.pop("annotations"), "", "has no list 'annotations'"),
        (lambda content: content.pop("categories"), "", "has no list 'categories'"),
        (replaced(annotations={}), "", "has no list 'annotations'"),
        (replaced(images=[], annotations=[]), "", "lists no image"),
        (replaced(categories=[]), "", "0 categories"),
        (replaced(categories=[{"id": each, "name": "it"} for each in range(81)]), "", "81 categories"),
        (changed("categories", 1, id=None), "categories[1]: ", "has no 'id'"),
        (changed("categories", 1, name=None), "categories[1]: ", "has no 'name'"),
        (changed("categories", 1, id=18), "categories[1]: ", "the id 18 is another category's already"),
        (changed("images", 2, id=None), "images[2]: ", "has no 'id'"),
        (changed("images", 2, id=10), "images[2]: ", "the id 10 is another image's already"),
        (changed("images", 2, id="a"), "images[2]: ", "id 'a' is not a whole number"),
        (changed("images", 2, id=True), "images[2]: ", "id True is not a whole number"),
        (changed("images", 2, file_name=None), "images[2]: ", "has no 'file_name'"),
        (changed("images", 2, file_name="../../etc/passwd"), "images[2]: ", "is not the name of a file"),
        (changed("images", 2, file_name=".."), "images[2]: ", "is not the name of a file"),
        (changed("images", 2, file_name=3), "images[2]: ", "is not the name of a file"),
        (changed("images", 2, height=None), "images[2]: ", "has no 'height'"),
        (changed("images", 2, width=0), "images[2]: ", "48 x 0 is not the size of an image"),
        (changed("images", 2, width=0.5), "images[2]: ", "width 0.5 is not a whole number"),
        (changed("annotations", 3, id=None), "annotations[3]: ", "has no 'id'"),
        (changed("annotations", 3, id=101), "annotation 101: ", "the id is another annotation's already"),
        (changed("annotations", 3, image_id=None), "annotation 103: ", "has no 'image_id'"),
        (changed("annotations", 3, image_id=7), "annotation 103: ", "the image 7 is not listed"),
        (changed("annotations", 3, category_id=None), "annotation 103: ", "has no 'category_id'"),
        (changed("annotations", 3, category_id=12), "annotation 103: ", "the category 12 is not listed"),
        (changed("annotations", 3, bbox=None), "annotation 103: ", "has no 'bbox'"),
        (changed("annotations", 3, bbox=[1, 2, 3]), "annotation 103: ", "[1, 2, 3] is not four numbers"),
        (changed("annotations", 3, bbox=[1, 2, 3, "4"]), "annotation 103: ", "is not four numbers"),
        (changed("annotations", 3, bbox=[1, 2, 3, True]), "annotation 103: ", "is not four numbers"),
        (changed("annotations", 3, iscrowd=2), "annotation 103: ", "iscrowd 2 is neither 0 nor 1"),
        (replaced(annotations=[7]), "annotations[0]: ", "not an object"),
        (replaced(images=[[]]), "images[0]: ", "not an object"),
    ],
)
def test_wrong_entries_are_refused_with_their_place(tmp_path, content, change, where, problem):
    path = write_coco(tmp_path, content)  # the images of the right one
    change(content)
    path.write_text(json.dumps(content))
    text = refused(tmp_path)
    assert text.startswith(f"{path}: {where}")
    assert problem in text


@pytest.mark.parametrize(
    "broken",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"[" * 200_000,
        lambda whole: whole.replace(b"person", b"pers\xff\xfe"),
        lambda whole: whole.replace(b'"id": 10,', b'"id": ' + b"1" * 5000 + b","),
    ],
)
def test_torn_annotations_are_named(tmp_path, broken):
    path = write_coco(tmp_path)
    path.write_bytes(broken(path.read_bytes()))
    assert refused(tmp_path).startswith(f"{path}: not JSON: ")


def test_annotations_that_are_no_object_are_named(tmp_path):
    path = write_coco(tmp_path, "[]")
    assert refused(tmp_path).startswith(f"{path}: has no list 'images'")


def test_missing_images_are_named_and_counted(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "train2017/000000000004.jpg").unlink()
    path = tmp_path / "train2017/000000000004.jpg"
    assert refused(tmp_path).startswith(f"{path}: missing\n")
    (tmp_path / "train2017/000000000002.jpg").unlink()
    path = tmp_path / "train2017/000000000002.jpg"
    assert refused(tmp_path).startswith(f"{path}: missing, and so are 1 more\n")


def test_a_missing_folder_of_images_is_named(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    assert refused(tmp_path).startswith(f"{tmp_path / 'train2017'}: missing\n")


def test_an_empty_image_is_named_when_it_is_read(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "train2017/000000000002.jpg").write_bytes(b"")
    found = read_coco(tmp_path, "train")
    with pytest.raises(DataError, match=rf"{found.name(2)}: empty"):
        found.read(2)


def test_sums_are_compared(tmp_path):
    path = write_coco(tmp_path)
    (tmp_path / "MD5SUMS").write_text(f"{'0' * 32}  annotations/instances_train2017.json\n")
    assert refused(tmp_path).startswith(f"{path}: wrong checksum")


def test_a_set_is_few_objects(tmp_path):
    """Forked workers share it: the number of its objects does not grow with its images."""

    def objects(images):
        found = opened(tmp_path / str(images), coco_annotations(images=images, sizes=((90, 90),)))
        assert found.boxes.dtype == np.float32
        return sum(1 for _ in pickletools.genops(pickle.dumps(found)))

    assert objects(5) == objects(20)
