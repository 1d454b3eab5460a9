"""The pass through a backbone whose rows belong to different domains: prompts are inputs, not parameters.

``BankEncoder`` calls it in torch, and ``cse.export.graph`` traces it into the bank's graph.
"""

from __future__ import annotations

import torch
from torch import nn

from cse.model.backbone import Backbone


class BankPass(nn.Module):
    """Backbone and pooler for rows with prompts of their own.

    Args:
        backbone: the frozen language model.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        words = backbone.words(torch.tensor([[backbone.special_ids["cls"]]]))
        self.own_cls_D = nn.Parameter(words[0, 0].detach().clone(), requires_grad=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        domain: torch.Tensor,
        prompt: torch.Tensor,
        prompt_length: torch.Tensor,
        position_shift: torch.Tensor,
        trained_cls: torch.Tensor,
        cls: torch.Tensor,
        pool_cls: torch.Tensor,
    ) -> torch.Tensor:
        """Return pooled vectors ``(B, D)``.

        Args:
            input_ids: token ids ``(B, L)``.
            attention_mask: 1 for real tokens ``(B, L)``.
            domain: number of each row's domain among the ``U`` domains of the batch ``(B,)``.
            prompt: keys and values ``(U * 2 * layers, H, P, K)``: for each domain the first layer's keys, its values,
                the second layer's keys, ...
            prompt_length: how many of the ``P`` columns each domain has ``(U,)``.
            position_shift: positions before the first token ``(U,)``.
            trained_cls: whether the domain has its own word vector of ``[CLS]`` ``(U,)``.
            cls: that vector ``(U, D)``; any number where it has none.
            pool_cls: whether the pooler is ``cls``; otherwise ``mean`` ``(U,)``.
        """
        begins_BL = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids) == 0
        cls_UD = torch.where(trained_cls[:, None], cls, self.own_cls_D)
        words_BLD = self.backbone.words(input_ids)
        words_BLD = torch.where(begins_BL[:, :, None], cls_UD[domain][:, None], words_BLD)
        # padding takes position 0: behind a row with a shift it may reach beyond the position table
        positions_BL = self.backbone.positions(attention_mask, position_shift[domain][:, None]) * attention_mask
        embedded_BLD = self.backbone.embed(words_BLD, positions_BL)

        first_B = domain * (2 * self.backbone.layers)
        prefix = [
            (prompt[first_B + 2 * layer], prompt[first_B + 2 * layer + 1]) for layer in range(self.backbone.layers)
        ]
        columns_P = torch.arange(prompt.shape[2], device=prompt.device)
        prompt_BP = columns_P[None, :] < prompt_length[domain][:, None]
        last_BLD = self.backbone.run(
            embedded_BLD, positions_BL, attention_mask, prefix, every=False, prompt_BP=prompt_BP
        )[-1]

        dtype = last_BLD.dtype
        weight_BL = torch.where(pool_cls[domain][:, None], begins_BL.to(dtype), attention_mask.to(dtype))
        weight_BL1 = weight_BL[:, :, None]
        pooled_BD = (last_BLD * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1).clamp(min=1)
        return pooled_BD if self.backbone.dense is None else self.backbone.dense(pooled_BD)
