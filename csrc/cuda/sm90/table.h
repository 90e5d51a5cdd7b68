// The kernels of Hopper: what each is cut into, and what was measured of it on an H200
// (docs/tuning.md). One line is one file to compile, and one candidate of the choice.
// clang-format off
//  name               kernel,     tile M x N,                                          us, rate
ROW(stream_8x64,        stream,        8,  64,                                     2.60, 1.313)
ROW(stream_16x64,       stream,       16,  64,                                     2.65, 1.365)
ROW(stream_32x64,       stream,       32,  64,                                     2.80, 1.379)
ROW(stream_48x64,       stream,       48,  64,                                     3.02, 1.449)
ROW(stream_64x64,       stream,       64,  64,                                     3.25, 1.505)
ROW(stream_80x64,       stream,       80,  64,                                     3.07, 1.265)
ROW(stream_16x128,      stream,       16, 128,                                     3.23, 1.269)
ROW(stream_32x128,      stream,       32, 128,                                     3.43, 1.267)
ROW(stream_64x128,      stream,       64, 128,                                     4.21, 1.358)
ROW(stream_96x128,      stream,       96, 128,                                     4.62, 1.274)
ROW(stream_128x128,     stream,      128, 128,                                     5.01, 1.273)
ROW(stream_144x128,     stream,      144, 128,                                     4.97, 1.107)
ROW(stream_192x128,     stream,      192, 128,                                     4.67, 1.081)
//  name               kernel,     tile M x N x K, cluster, schedule,    swizzle,       us, rate
ROW(ping_64x128_2x1,   persistent,   64, 128, 128,  2, 1,   pingpong,    1,              3.18, 1.122)
ROW(ping_64x256_2x1,   persistent,   64, 256, 128,  2, 1,   pingpong,    1,              3.15, 0.985)
ROW(ping_128x128_2x1,  persistent,  128, 128, 128,  2, 1,   pingpong,    8,              2.00, 1.035)
ROW(ping_128x128_1x2,  persistent,  128, 128, 128,  1, 2,   pingpong,    8,              3.00, 1.022)
ROW(coop_128x256_1x2,  persistent,  128, 256, 128,  1, 2,   cooperative, 8,              1.50, 1.000)
ROW(coop_256x128_1x2,  persistent,  256, 128, 128,  1, 2,   cooperative, 8,              1.50, 1.005)
// clang-format on
