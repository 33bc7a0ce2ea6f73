"""A training script with Accelerate: ``accelerate_loop.py FOLDER``."""

import common
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
network = common.network()
optimizer = torch.optim.SGD(network.parameters(), **common.SGD)
network, optimizer, loader = accelerator.prepare(network, optimizer, common.loader())
criterion, clock = torch.nn.CrossEntropyLoss(), common.Clock()
network.train()
for index, (images, labels) in enumerate(loader):
    optimizer.zero_grad()
    accelerator.backward(criterion(network(images), labels))
    optimizer.step()
    clock.step(index)
