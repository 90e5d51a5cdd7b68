// The kernels of Hopper: what each is cut into, and what was measured of it on an H200
// (docs/tuning.md). One line is one file to compile, and one candidate of the choice.
// clang-format off
//  name               kernel,     tile M x N,                                          us, rate
ROW(stream_8x64,        stream,        8,  64,                                     2.18, 1.414)
ROW(stream_16x64,       stream,       16,  64,                                     2.31, 1.332)
ROW(stream_32x64,       stream,       32,  64,                                     2.61, 1.502)
ROW(stream_48x64,       stream,       48,  64,                                     2.87, 1.480)
ROW(stream_64x64,       stream,       64,  64,                                     2.94, 1.346)
ROW(stream_80x64,       stream,       80,  64,                                     3.54, 1.546)
ROW(stream_16x128,      stream,       16, 128,                                     4.09, 1.605)
ROW(stream_32x128,      stream,       32, 128,                                     4.22, 1.588)
ROW(stream_64x128,      stream,       64, 128,                                     4.69, 1.633)
ROW(stream_96x128,      stream,       96, 128,                                     4.41, 1.200)
ROW(stream_128x128,     stream,      128, 128,                                     4.88, 1.226)
ROW(stream_144x128,     stream,      144, 128,                                     4.65, 1.167)
ROW(stream_192x128,     stream,      192, 128,                                     3.72, 1.077)
//  name               kernel,     tile M x N x K, cluster, schedule,    swizzle,       us, rate
ROW(ping_64x128_2x1,   persistent,   64, 128, 128,  2, 1,   pingpong,    1,              3.21, 1.090)
ROW(ping_64x256_2x1,   persistent,   64, 256, 128,  2, 1,   pingpong,    1,              4.98, 1.037)
ROW(ping_128x128_2x1,  persistent,  128, 128, 128,  2, 1,   pingpong,    8,              2.33, 1.074)
ROW(ping_128x128_1x2,  persistent,  128, 128, 128,  1, 2,   pingpong,    8,              4.20, 0.999)
ROW(coop_128x256_1x2,  persistent,  128, 256, 128,  1, 2,   cooperative, 8,              0.50, 0.991)
ROW(coop_256x128_1x2,  persistent,  256, 128, 128,  1, 2,   cooperative, 8,              6.20, 1.122)
// clang-format on
