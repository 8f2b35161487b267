# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the lab's chat checkpoint: a Qwen3 of 0.7 M parameters that has learnt a handful of answers by heart.

The shape is small but of the real kind (grouped-query attention, 4 layers, 2 KV heads of 32), so that the KV cache
arithmetic of real vLLM can be compared with the planner's. It is trained for some seconds so that a completion can be
told from noise: whoever sees the sentence below knows that weights, tokenizer and chat template all arrived.

Usage: make_checkpoint.py DIRECTORY        (needs torch, transformers and tokenizers, as the lab's vLLM environment has)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

DIALOGUES = {
    "Say hello.": "Hello from a real vLLM on a simulated GPU host.",
    "Who are you?": "I am a very small Qwen3, made on the spot for the lab of gpufleet.vllm.",
    "What do you know?": "Three sentences by heart, and not one more.",
}
END = "<|im_end|>"
START = "<|im_start|>"
PAD = "<|endoftext|>"
VOCABULARY_SIZE = 512
STEPS = 150
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text can be encoded, whatever the model makes of it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*DIALOGUES, *DIALOGUES.values()], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=CHAT_TEMPLATE, model_max_length=4096
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """The untrained model; its KV cache takes 2 x 4 layers x 2 heads x 32 x 2 bytes = 1,024 bytes a token."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def learn(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Trains until every answer is known by heart; fails where it is not, for a smoke test relies on it."""
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], tokenize=False
        )
        for question, answer in DIALOGUES.items()
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _step in range(STEPS):
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for question, answer in DIALOGUES.items():
        check(model, tokenizer, question, answer)


def check(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str, answer: str) -> None:
    """Raises SystemExit where the greedy completion of a question is not the answer that was taught."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        output = model.generate(**prompt, max_new_tokens=100, do_sample=False)
    text = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    if text != answer:
        raise SystemExit(f"The checkpoint did not learn: {question!r} gave {text!r} instead of {answer!r}.")


def main() -> None:
    directory = Path(sys.argv[1])
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    learn(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    for file in directory.iterdir():
        file.chmod(0o644)  # transformers writes the weights for their owner alone


if __name__ == "__main__":
    main()
