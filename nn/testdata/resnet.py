"""Trains a ResNet-18 with torchvision's names for 20 steps of AdamW, and writes to a directory the
weights that it began with, its input, and the first step's logits and gradients, and as
training.json the rest."""
import json
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
BATCH, SIZE, CLASSES, STEPS = 4, 64, 10, 20


class Block(nn.Module):
    def __init__(self, n, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or n != out:
            self.downsample = nn.Sequential(nn.Conv2d(n, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        n = 64
        for i, out in enumerate([64, 128, 256, 512]):
            setattr(self, f"layer{i+1}", nn.Sequential(Block(n, out, min(i + 1, 2)), Block(out, out, 1)))
            n = out
        self.fc = nn.Linear(512, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def write(name, tensors):
    with open(f"{sys.argv[1]}/{name}", "wb") as f:
        for t in tensors:
            f.write(t.detach().cpu().contiguous().numpy().astype("<f4").tobytes())


device = "cuda" if torch.cuda.is_available() else "cpu"
net = ResNet()
x = torch.randn(BATCH, 3, SIZE, SIZE)
labels = torch.randint(CLASSES, (BATCH,))
write("weights", net.parameters())
write("input", [x])
net, x, y = net.to(device), x.to(device), labels.to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
losses = []
for step in range(STEPS):
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    if step == 0:
        write("logits", [logits])
        write("grads", [p.grad for p in net.parameters()])
    opt.step()
    losses.append(loss.item())
with open(f"{sys.argv[1]}/training.json", "w") as f:
    json.dump({
        "Version": torch.__version__, "Batch": BATCH, "Size": SIZE, "Classes": CLASSES,
        "Names": [name for name, _ in net.named_parameters()], "Labels": labels.tolist(), "Losses": losses,
    }, f)
