// clang-format off
//  name               kernel,   tile M x N
ROW(stream_8x64,        stream,       8,  64)
ROW(stream_16x64,       stream,      16,  64)
ROW(stream_32x64,       stream,      32,  64)
ROW(stream_48x64,       stream,      48,  64)
ROW(stream_64x64,       stream,      64,  64)
ROW(stream_80x64,       stream,      80,  64)
ROW(stream_16x128,      stream,      16, 128)
ROW(stream_32x128,      stream,      32, 128)
ROW(stream_64x128,      stream,      64, 128)
ROW(stream_96x128,      stream,      96, 128)
ROW(stream_128x128,     stream,     128, 128)
ROW(stream_144x128,     stream,     144, 128)
ROW(stream_192x128,     stream,     192, 128)
//  name               kernel,   tile M x N x K, cluster, schedule, swizzle
ROW(ping_64x128_2x1,   persistent,  64, 128, 128,  2, 1,  pingpong,    1)
ROW(ping_64x256_2x1,   persistent,  64, 256, 128,  2, 1,  pingpong,    1)
ROW(ping_128x128_2x1,  persistent, 128, 128, 128,  2, 1,  pingpong,    8)
ROW(ping_128x128_1x2,  persistent, 128, 128, 128,  1, 2,  pingpong,    8)
ROW(coop_128x256_1x2,  persistent, 128, 256, 128,  1, 2,  cooperative, 8)
ROW(coop_256x128_1x2,  persistent, 256, 128, 128,  1, 2,  cooperative, 8)
// clang-format on
