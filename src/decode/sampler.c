typedef int sl_placeholder_sampler;
