"""Calls that need torch: `maskc.integrations.torch` runs them, and is loaded by the first one."""

from __future__ import annotations

from typing import Any


def through_torch(*call: Any) -> Any:
    """Run a call that torch must see, see `maskc.integrations.torch.through_torch`."""
    from maskc.integrations import torch

    return torch.through_torch(*call)


def indexer_loss_of(*call: Any) -> Any:
    """Return the loss of an indexer, see `maskc.integrations.torch.indexer_loss`."""
    from maskc.integrations.torch.indexer_loss import indexer_loss

    return indexer_loss(*call)


def entmax_by_head(*call: Any) -> Any:
    """Run a call with an alpha for each head, see `maskc.integrations.torch.alpha`."""
    from maskc.integrations.torch.alpha import attention_by_head

    return attention_by_head(*call)
