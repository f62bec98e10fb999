"""Whole texts in one batch: where their rows are, and what each row is."""

import numpy as np
import torch

from tenure.layers.pooling import first_rows, last_rows, max_rows, mean_rows, split_rows
from tenure.layers.text_batch import AlikeTexts, pack_texts, split_alike

TEXTS = [[5, 6, 7], [8], [9, 10, 11], [12, 13]]


def test_texts_of_one_length_lie_side_by_side() -> None:
    batch = pack_texts(TEXTS)
    assert batch.token_ids_T.tolist() == [8, 12, 13, 5, 6, 7, 9, 10, 11]
    assert batch.positions_T.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2]
    assert batch.starts_S.tolist() == [3, 0, 6, 1]
    assert batch.lengths_S.tolist() == [3, 1, 3, 2]
    assert batch.alike == (AlikeTexts(0, 1, 1), AlikeTexts(1, 1, 2), AlikeTexts(3, 2, 3))
    assert batch.token_types_T.tolist() == [0] * 9


def test_the_second_text_of_a_pair() -> None:
    batch = pack_texts([np.array([1, 2, 3, 4]), np.array([5, 6])], [3, 0])
    assert batch.token_ids_T.tolist() == [5, 6, 1, 2, 3, 4]
    assert batch.token_types_T.tolist() == [0, 0, 0, 0, 0, 1]


def test_texts_of_one_length_that_show_themselves_alike_lie_side_by_side() -> None:
    batch = pack_texts(TEXTS, unattended=[2, 0, 1, 0])
    assert batch.token_ids_T.tolist() == [8, 12, 13, 9, 10, 11, 5, 6, 7]
    assert batch.starts_S.tolist() == [6, 0, 3, 1]
    assert batch.alike == (AlikeTexts(0, 1, 1), AlikeTexts(1, 1, 2), AlikeTexts(3, 1, 3, 1), AlikeTexts(6, 1, 3, 2))
    assert pack_texts([*TEXTS, TEXTS[0]], unattended=[2, 0, 1, 0, 2]).alike[-1] == AlikeTexts(6, 2, 3, 2)
    assert split_alike(batch.alike, 3)[-1] == [AlikeTexts(0, 1, 3, 2)]


def test_pieces_of_a_batch() -> None:
    alike = (AlikeTexts(0, 5, 2), AlikeTexts(10, 2, 9), AlikeTexts(28, 1, 20))
    assert split_alike(alike, 100) == [list(alike)]
    assert split_alike(alike, 6) == [
        [AlikeTexts(0, 3, 2)],
        [AlikeTexts(0, 2, 2)],
        [AlikeTexts(0, 1, 9)],
        [AlikeTexts(0, 1, 9)],
        [AlikeTexts(0, 1, 20)],
    ]
    assert split_alike(alike, 15)[0] == [AlikeTexts(0, 5, 2)]
    assert split_alike(alike, 19)[0] == [AlikeTexts(0, 5, 2), AlikeTexts(10, 1, 9)]


def test_pooling_gives_texts_in_their_own_order() -> None:
    batch = pack_texts(TEXTS)
    x = batch.token_ids_T.float().unsqueeze(1)
    assert first_rows(x, batch).flatten().tolist() == [5, 8, 9, 12]
    assert last_rows(x, batch).flatten().tolist() == [7, 8, 11, 13]
    assert max_rows(-x, batch).flatten().tolist() == [-5, -8, -9, -12]
    assert mean_rows(x, batch).flatten().tolist() == [6, 8, 10, 12.5]
    assert [rows.flatten().tolist() for rows in split_rows(x, batch)] == TEXTS


def test_the_mean_of_a_long_text_is_exact() -> None:
    x = torch.randn(8192, 7) + 1000
    [mean] = mean_rows(x, pack_texts([[0] * 8192]))
    torch.testing.assert_close(mean, x.double().mean(0).float(), atol=0, rtol=1e-5)
