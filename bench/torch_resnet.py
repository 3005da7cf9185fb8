"""Trains PyTorch's ResNet-50 on one GPU with random images, channels last, and prints what a step takes.

    python3 bench/torch_resnet.py --compile --dtype amp --batch 256 --steps 60

It writes the initial state and the images to --write FOLDER, so that another program can train the same model on
the same images, and prints the losses of all steps as JSON.
"""
import argparse
import json
import os
import struct
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)  # for tests, which are then skipped


class Bottleneck(nn.Module):
    """torchvision's block of three convolutions, with its names."""

    def __init__(self, inner, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inner != out:
            self.downsample = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """torchvision's ResNet of Bottlenecks, with its names and initialisation."""

    def __init__(self, depths, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inner = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(inner, width << i, 2 if i > 0 and j == 0 else 1))
                inner = 4 * (width << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inner, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def write_safetensors(path, tensors):
    """Writes tensors of float32 and int64 in the format of safetensors."""
    header, at, parts = {}, 0, []
    for name, t in tensors.items():
        raw = t.detach().contiguous().cpu().numpy().tobytes()
        header[name] = {"dtype": {torch.float32: "F32", torch.int64: "I64"}[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        parts.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for raw in parts:
            f.write(raw)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--compile", action="store_true", help="use torch.compile")
    p.add_argument("--dtype", default="amp", choices=["amp", "bf16", "f32"], help="bf16 autocast, parameters in bf16, or float32 with TF32")
    p.add_argument("--depths", type=int, nargs=4, default=[3, 4, 6, 3])
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--classes", type=int, default=1000)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--image", type=int, default=224)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--device", default="cuda")
    p.add_argument("--write", help="folder for the initial state and the images")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    net = ResNet(a.depths, a.width, a.classes)
    x = torch.randn(a.batch, 3, a.image, a.image)
    labels = torch.randint(a.classes, (a.batch,))
    if a.write:
        os.makedirs(a.write, exist_ok=True)
        write_safetensors(os.path.join(a.write, "initial.safetensors"), net.state_dict())
        write_safetensors(os.path.join(a.write, "images.safetensors"), {"images": x, "labels": labels})
    net = net.to(a.device, memory_format=torch.channels_last)
    x = x.to(a.device).contiguous(memory_format=torch.channels_last)
    labels = labels.to(a.device)
    if a.dtype == "bf16":
        net = net.to(torch.bfloat16)
    if a.dtype != "f32":
        x = x.to(torch.bfloat16)
    cuda = a.device == "cuda"
    opt = torch.optim.SGD(net.parameters(), lr=a.lr, momentum=0.9, weight_decay=1e-4, **({"fused": True} if cuda else {}))
    forward = torch.compile(net) if a.compile else net

    def step():
        with torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "amp"):
            loss = nn.functional.cross_entropy(forward(x).float(), labels)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.detach()

    losses, begin = [], time.time()
    for _ in range(a.warmup):
        losses.append(step())
    losses[-1].item()
    warm = time.time() - begin
    begin = time.time()
    for _ in range(a.steps):
        losses.append(step())
    losses[-1].item()
    took = (time.time() - begin) / a.steps
    print(json.dumps({
        "step_ms": round(1e3 * took, 3), "images_per_s": round(a.batch / took), "warmup_s": round(warm, 1),
        "peak_mib": torch.cuda.max_memory_allocated() >> 20 if cuda else 0,
        "torch": torch.__version__, "compile": a.compile, "dtype": a.dtype, "losses": [round(l.item(), 5) for l in losses],
    }))


if __name__ == "__main__":
    main()
