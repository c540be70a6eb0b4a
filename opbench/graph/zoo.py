"""The networks that are part of opbench, as functions of their sizes."""

from __future__ import annotations

from collections.abc import Callable

from opbench.errors import UsageError
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.values import Value


def lenet(batch: int = 1) -> Graph:
    """Return LeNet-5 for 1x28x28 digits, with ReLU and max pooling (LeCun et al. 1998, with modern activations)."""
    net = Builder("lenet")
    x = net.input("image", batch, 1, 28, 28)
    x = net.maxpool2d(net.relu(net.conv2d(x, 6, 5, padding=2, name="conv1"), name="relu1"), name="pool1")
    x = net.maxpool2d(net.relu(net.conv2d(x, 16, 5, name="conv2"), name="relu2"), name="pool2")
    x = net.flatten(x)
    x = net.relu(net.linear(x, 120, name="fc3"), name="relu3")
    x = net.relu(net.linear(x, 84, name="fc4"), name="relu4")
    return net.graph(net.linear(x, 10, name="fc5"))


def alexnet(batch: int = 1) -> Graph:
    """Return AlexNet for 1x224x224 images, ten classes (Krizhevsky et al. 2012); the first layer has no padding."""
    net = Builder("alexnet")
    x = net.input("image", batch, 1, 224, 224)
    x = net.relu(net.conv2d(x, 96, 11, stride=4, name="conv1"), name="relu1")
    x = net.maxpool2d(x, 3, 2, name="pool1")
    x = net.maxpool2d(net.relu(net.conv2d(x, 256, 5, padding=2, name="conv2"), name="relu2"), 3, 2, name="pool2")
    for i, k in ((3, 384), (4, 384), (5, 256)):
        x = net.relu(net.conv2d(x, k, 3, padding=1, name=f"conv{i}"), name=f"relu{i}")
    x = net.flatten(net.maxpool2d(x, 3, 2, name="pool5"))
    for i in (6, 7):
        x = net.dropout(net.relu(net.linear(x, 4096, name=f"fc{i}"), name=f"relu{i}"), name=f"drop{i}")
    return net.graph(net.linear(x, 10, name="fc8"))


def unet(
    batch: int = 1, size: int = 256, base: int = 64, levels: int = 4, channels: int = 1, classes: int = 1
) -> Graph:
    """Return UNet with padded convolutions and nearest upsampling (Ronneberger et al. 2015).

    Each level has two 3x3 convolutions with batch norm and ReLU; `levels` max poolings down, as many upsamplings.
    """
    _require_halvings("unet", size, levels, ", or fewer levels")
    net = Builder("unet")

    def level(x: Value, k: int, name: str) -> Value:
        for half in "ab":
            x = net.conv2d(x, k, 3, padding=1, name=f"{name}{half}")
            x = net.relu(net.batchnorm2d(x, name=f"{name}{half}.norm"), name=f"{name}{half}.relu")
        return x

    x, skip_connections = net.input("image", batch, channels, size, size), []
    for i in range(levels):
        skip_connections.append(level(x, base << i, f"down{i}"))
        x = net.maxpool2d(skip_connections[-1], name=f"pool{i}")
    x = level(x, base << levels, "bottom")
    for i in reversed(range(levels)):
        x = net.concat(skip_connections[i], net.upsample2d(x, name=f"up{i}.upsample"), name=f"up{i}.concat")
        x = level(x, base << i, f"up{i}")
    return net.graph(net.conv2d(x, classes, 1, name="head"))


def resnet18(batch: int = 1, size: int = 224, channels: int = 3, base: int = 64, classes: int = 1000) -> Graph:
    """Return ResNet-18 for 3 channels and 1000 classes (He et al. 2015): blocks of two 3x3 convolutions and a sum.

    `base` is the number of channels of the first stage.
    """
    return _resnet("resnet18", (2, 2, 2, 2), False, batch, size, channels, base, classes)


def resnet50(batch: int = 1, size: int = 224, channels: int = 3, base: int = 64, classes: int = 1000) -> Graph:
    """Return ResNet-50 for images of 3 channels, 1000 classes (He et al. 2015), its stride in the 3x3 convolutions.

    Each block has a 1x1, a 3x3 and a 1x1 convolution to four times `base` channels, and a sum.
    """
    return _resnet("resnet50", (3, 4, 6, 3), True, batch, size, channels, base, classes)


def _require_halvings(name: str, size: int, count: int, remedy: str = "") -> None:
    """Raise UsageError for an image size that cannot be halved so often; `remedy` is a further one."""
    if size % (1 << count):
        raise UsageError(
            f"{name}: size={size} cannot be halved {count} times; choose a multiple of {1 << count}{remedy}",
            kind="not-allowed",
            subject="size",
            value=size,
            allowed=1 << count,
        )


def _resnet(
    name: str, stages: tuple[int, ...], bottleneck: bool, batch: int, size: int, channels: int, base: int, classes: int
) -> Graph:
    """Return a ResNet with some blocks per stage."""
    _require_halvings(name, size, 5)
    net = Builder(name)

    def conv(x: Value, k: int, r: int, stride: int, name: str) -> Value:
        """Add a convolution that keeps the size but for its stride, and its batch norm."""
        x = net.conv2d(x, k, r, stride=stride, padding=r // 2, bias=False, name=name)
        return net.batchnorm2d(x, name=f"{name}.norm")

    def block(x: Value, k: int, stride: int, name: str) -> Value:
        widths = ((k, 1, 1), (k, 3, stride), (4 * k, 1, 1)) if bottleneck else ((k, 3, stride), (k, 3, 1))
        y = x
        for number, (width, r, step) in enumerate(widths, start=1):
            y = conv(y, width, r, step, f"{name}.conv{number}")
            if number < len(widths):
                y = net.relu(y, name=f"{name}.relu{number}")
        if x.shape != y.shape:
            x = conv(x, y.shape[1], 1, stride, f"{name}.downsample")
        y = net.elementwise("add", y, x, name=f"{name}.sum")
        return net.relu(y, name=f"{name}.relu")

    x = net.input("image", batch, channels, size, size)
    x = net.maxpool2d(net.relu(conv(x, base, 7, 2, "conv1"), name="relu1"), 3, 2, 1, name="pool1")
    for stage, blocks in enumerate(stages):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            x = block(x, base << stage, stride, f"layer{stage + 1}.{number}")
    x = net.flatten(net.avgpool2d(x, size // 32, 1, name="pool2"))
    return net.graph(net.linear(x, classes, name="fc"))


def mobilenetv3(batch: int = 1, size: int = 224, channels: int = 3, classes: int = 1000, width: int = 100) -> Graph:
    """Return MobileNetV3-Large for images of 3 channels, 1000 classes (Howard et al. 2019), as torchvision defines it.

    Each block expands the channels by a 1x1 convolution, filters each channel by a depthwise 3x3 or 5x5 convolution,
    scales channels by squeeze and excitation in some blocks, and projects to fewer channels. `width` is the number of
    channels in percent, rounded to multiples of 8. The batch norms add 1e-5 to a variance; torchvision's add 1e-3.
    """
    _require_halvings("mobilenetv3", size, 5)
    net = Builder("mobilenetv3")

    def scaled(channels: int) -> int:
        return _multiple_of_8(channels * width / 100)

    def conv(x: Value, k: int, r: int, stride: int, activation: str, name: str) -> Value:
        """Add a convolution to k channels, or a depthwise one for k=0, its batch norm and its activation."""
        if k:
            x = net.conv2d(x, k, r, stride=stride, padding=r // 2, bias=False, name=name)
        else:
            x = net.depthwise_conv2d(x, r, stride=stride, padding=r // 2, bias=False, name=name)
        x = net.batchnorm2d(x, name=f"{name}.norm")
        if activation == "relu":
            return net.relu(x, name=f"{name}.relu")
        return net.activation(activation, x, name=f"{name}.{activation}") if activation else x

    def squeeze_excite(x: Value, name: str) -> Value:
        """Add squeeze and excitation: each channel is scaled by a number between 0 and 1.

        The number depends on the means of all channels of the image.
        """
        n, c, h, _ = x.shape
        y = net.flatten(net.avgpool2d(x, h, 1, name=f"{name}.means"), name=f"{name}.rows")
        y = net.relu(net.linear(y, _multiple_of_8(c / 4), name=f"{name}.fc1"), name=f"{name}.relu")
        y = net.activation("hardsigmoid", net.linear(y, c, name=f"{name}.fc2"), name=f"{name}.hardsigmoid")
        return net.elementwise("mul", x, net.view(y, (n, c, 1, 1), name=f"{name}.factors"), name=f"{name}.scale")

    def block(
        x: Value, r: int, expanded: int, k: int, squeezes: bool, activation: str, stride: int, name: str
    ) -> Value:
        y = x
        if expanded != x.shape[1]:
            y = conv(y, expanded, 1, 1, activation, f"{name}.expand")
        y = conv(y, 0, r, stride, activation, f"{name}.depthwise")
        if squeezes:
            y = squeeze_excite(y, f"{name}.squeeze")
        y = conv(y, k, 1, 1, "", f"{name}.project")
        return net.elementwise("add", y, x, name=f"{name}.sum") if x.shape == y.shape else y

    x = conv(net.input("image", batch, channels, size, size), scaled(16), 3, 2, "hardswish", "conv1")
    for number, (r, expanded, k, squeezes, activation, stride) in enumerate(MOBILENETV3_LARGE, start=1):
        x = block(x, r, scaled(expanded), scaled(k), squeezes, activation, stride, f"block{number}")
    x = conv(x, 6 * scaled(160), 1, 1, "hardswish", "conv2")
    x = net.flatten(net.avgpool2d(x, size // 32, 1, name="pool"))
    x = net.activation("hardswish", net.linear(x, scaled(1280), name="fc1"), name="fc1.hardswish")
    return net.graph(net.linear(net.dropout(x, 20, name="drop"), classes, name="fc2"))


MOBILENETV3_LARGE = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2),
    (3, 200, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 480, 112, True, "hardswish", 1),
    (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2),
    (5, 960, 160, True, "hardswish", 1),
    (5, 960, 160, True, "hardswish", 1),
)
"""For each block: depthwise filter, expanded channels, output channels, squeeze and excitation, activation, stride."""


def _multiple_of_8(channels: float) -> int:
    """Return the nearest multiple of 8, at least 8, and at least 90 % of the channels."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def diffusion(batch: int = 1, size: int = 64, channels: int = 4, base: int = 128) -> Graph:
    """Return the UNet of a diffusion model with one down block, a middle block and one up block (Ho et al. 2020).

    Inputs are images, or latent ones, and for each the `base` features of its time step, sines and cosines as a rule.
    Residual blocks have group norm with SiLU, 3x3 convolutions and a sum with the embedded time; `base` is their number
    of channels, and twice as many at half the size, where each pixel attends to all. Heads have up to 64 channels. The
    result is the noise in the images.
    """
    _require_diffusion(size, base)
    net = Builder("diffusion")
    image = net.input("image", batch, channels, size, size)
    return net.graph(_diffusion_noise(net, image, net.input("time", batch, base)))


def diffusion_for_training(batch: int = 1, size: int = 64, channels: int = 4, base: int = 128) -> Graph:
    """Return the network of `diffusion` with one input: images with one channel more, which holds the time's features.

    The features are the first `base` numbers of that channel, so base <= size x size. The weights are those of
    `diffusion`, by name.
    """
    _require_diffusion(size, base)
    if base > size * size:
        raise UsageError(
            f"diffusion: base={base} is not allowed; choose a base of at most {size * size}, the number of pixels of "
            "one channel, which stores the features of the time step",
            kind="not-allowed",
            subject="base",
            value=base,
            allowed=size * size,
        )
    net = Builder("diffusion")
    image, plane = net.split(net.input("image", batch, channels + 1, size, size), channels, name="inputs")
    features = net.view(plane, (batch, size * size, 1, 1), name="time.plane")
    if base < size * size:
        features, _ = net.split(features, base, name="time.part")
    return net.graph(_diffusion_noise(net, image, net.flatten(features, name="time")))


def _require_diffusion(size: int, base: int) -> None:
    if size % 2 or base % 32:
        raise UsageError(
            f"diffusion: size={size}, base={base} is not allowed; choose an even size, and a multiple of 32 for base",
            kind="not-allowed",
            subject="size" if size % 2 else "base",
            value=size if size % 2 else base,
            allowed=2 if size % 2 else 32,
        )


def _diffusion_noise(net: Builder, image: Value, time: Value) -> Value:
    """Add the layers of a diffusion model's UNet; return the noise in the images."""
    batch, channels, _, _ = image.image
    base = time.shape[1]
    time = net.linear(time, 4 * base, name="time1")
    time = net.linear(net.activation("silu", time, name="time1.silu"), 4 * base, name="time2")
    time = net.activation("silu", time, name="time2.silu")

    def residual(x: Value, k: int, name: str) -> Value:
        y = net.conv2d(net.groupnorm(x, activation="silu", name=f"{name}.norm1"), k, 3, padding=1, name=f"{name}.conv1")
        shift = net.view(net.linear(time, k, name=f"{name}.time"), (batch, k, 1, 1), name=f"{name}.shift")
        y = net.elementwise("add", y, shift, name=f"{name}.shifted")
        y = net.conv2d(net.groupnorm(y, activation="silu", name=f"{name}.norm2"), k, 3, padding=1, name=f"{name}.conv2")
        x = x if x.shape == y.shape else net.conv2d(x, k, 1, name=f"{name}.skip")
        return net.elementwise("add", y, x, name=f"{name}.sum")

    def attention(x: Value, name: str) -> Value:
        c = x.shape[1]
        rows = net.flatten_pixels(net.groupnorm(x, name=f"{name}.norm"), name=f"{name}.pixels")
        rows = net.attention(net.linear(rows, 3 * c, name=f"{name}.qkv"), -(-c // 64), batch, "none", name=name)
        rows = net.linear(rows, c, name=f"{name}.projection")
        return net.elementwise("add", net.image(rows, x, name=f"{name}.image"), x, name=f"{name}.sum")

    large = residual(net.conv2d(image, base, 3, padding=1, name="first"), base, "down1")
    x = net.conv2d(large, base, 3, stride=2, padding=1, name="down1.half")
    small = attention(residual(x, 2 * base, "down2"), "down2.attention")
    x = attention(residual(small, 2 * base, "middle1"), "middle.attention")
    x = net.concat(residual(x, 2 * base, "middle2"), small, name="up2.concat")
    x = attention(residual(x, 2 * base, "up2"), "up2.attention")
    x = net.conv2d(net.upsample2d(x, name="up1.upsample"), 2 * base, 3, padding=1, name="up1.double")
    x = residual(net.concat(x, large, name="up1.concat"), base, "up1")
    x = net.groupnorm(x, activation="silu", name="last.norm")
    return net.conv2d(x, channels, 3, padding=1, name="last")


def gpt2(
    batch: int = 1, tokens: int = 1024, layers: int = 12, heads: int = 12, width: int = 768, vocabulary: int = 50257
) -> Graph:
    """Return GPT-2 (124 million parameters, Radford et al. 2019), which scores the next token of each sequence.

    The input `tokens` has the tokens of all sequences. The input `places` has one index per sequence, among all
    batch x tokens rows: the token after this row is predicted. For a whole sequence, this is its last row.
    """
    net = Builder("gpt2")
    x, table = _gpt2_rows(net, batch, tokens, layers, heads, width, vocabulary)
    x = net.embedding(x, net.input("places", batch, dtype="i32"), name="last")
    return net.graph(net.linear(x, vocabulary, weight=table, name="scores"))


def gpt2_for_training(
    batch: int = 1, tokens: int = 1024, layers: int = 12, heads: int = 12, width: int = 768, vocabulary: int = 50257
) -> Graph:
    """Return GPT-2 for training: it scores the next token at each place of each sequence, (batch x tokens) rows.

    The only input are the tokens. The weights are those of `gpt2`, by name.
    """
    net = Builder("gpt2")
    x, table = _gpt2_rows(net, batch, tokens, layers, heads, width, vocabulary)
    return net.graph(net.linear(x, vocabulary, weight=table, name="scores"))


def _gpt2_rows(
    net: Builder, batch: int, tokens: int, layers: int, heads: int, width: int, vocabulary: int
) -> tuple[Value, Value]:
    """Add the layers of GPT-2 up to the last norm; return the activations, a row per token, and the table of tokens."""
    if width % heads:
        raise UsageError(
            f"gpt2: width={width} is not a multiple of heads={heads}, but every head must have the same number of "
            f"columns; choose a multiple of {heads}",
            kind="not-allowed",
            subject="width",
            value=width,
            allowed=heads,
        )
    bound = 0.02 * 3**0.5  # weights with a standard deviation of 0.02
    table = net.weight("tokens.weight", (vocabulary, width), bound)
    places = net.weight("positions.weight", (tokens, width), bound)
    x = net.embedding(table, net.input("tokens", batch, tokens, dtype="i32"), name="embedding")
    x = net.elementwise(
        "add", net.view(x, (batch, tokens, width), name="embedding.sequences"), places, name="positions"
    )
    x = net.view(x, (batch * tokens, width), name="positions.rows")
    for number in range(layers):
        name = f"layer{number}"
        y = net.linear(net.layernorm(x, name=f"{name}.norm1"), 3 * width, name=f"{name}.qkv")
        y = net.linear(net.attention(y, heads, batch, name=f"{name}.attention"), width, name=f"{name}.projection")
        x = net.elementwise("add", y, x, name=f"{name}.sum1")
        y = net.linear(net.layernorm(x, name=f"{name}.norm2"), 4 * width, name=f"{name}.up")
        y = net.linear(net.activation("gelu_tanh", y, name=f"{name}.gelu"), width, name=f"{name}.down")
        x = net.elementwise("add", y, x, name=f"{name}.sum2")
    return net.layernorm(x, name="norm"), table


NETWORKS: dict[str, Callable[..., Graph]] = {
    "lenet": lenet,
    "alexnet": alexnet,
    "unet": unet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenetv3": mobilenetv3,
    "diffusion": diffusion,
    "gpt2": gpt2,
}
"""Keys are the names in commands and suites."""
FOR_TRAINING: dict[str, Callable[..., Graph]] = {
    **NETWORKS,
    "gpt2": gpt2_for_training,
    "diffusion": diffusion_for_training,
}
"""The same networks in the form that is trained, with the same sizes and weights."""
