# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated NVIDIA driver of the gpufleet.vllm lab: nvidia-smi and the container runtime, fed by a profile.

Not NVIDIA's software. Python 3.8, standard library only, because it is mounted into containers as it is.
"""
