typedef int sl_placeholder_attn;
